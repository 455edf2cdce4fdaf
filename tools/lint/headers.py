"""Compiles each header alone, without precompiled headers, to check that it includes everything that it uses.

By default it checks the headers that differ from the last commit, within a time budget. If no file differs, it checks the
headers that the last commit changed. With --all it checks every header. The flags are those of a neighbouring source file in
compile_commands.json. Headers that need CUDA are left out if the build has no CUDA.
"""
import json
import os
import re
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from layers import INCLUDE
from sources import Finding, Skip, read
from tidy import one_file_each

HEADERS = (".h", ".cuh")
BUDGET_S = 120
CUDA = re.compile(r"(cuda|cublas|cudnn|cupti|nccl|nvtx|c10/cuda/|ATen/cuda)")
ERROR = re.compile(r"^(?P<where>\S+?)(?::|\()(?P<line>\d+)(?::\d+:|\):) (?:fatal )?error: (?P<what>.*)$", re.M)


def changed_names(root):
    def git(*arguments):
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Skip("not a git checkout")
        return {name for name in result.stdout.split("\0") if name}

    names = git("diff", "--name-only", "-z", "HEAD") | git("ls-files", "--others", "--exclude-standard", "-z")
    return names or git("show", "-m", "--first-parent", "--format=", "--name-only", "-z", "HEAD")


def needs_cuda(root, path, known):
    """Returns whether the header includes a CUDA header, directly or through headers of this repository."""
    if path not in known:
        known[path] = False  # also stops at cycles
        here = root / path
        known[path] = here.suffix == ".cuh" or any(
            CUDA.match(name) or ((root / name).is_file() and needs_cuda(root, name, known))
            for name in (INCLUDE.findall(read(root, path))))
    return known[path]


def syntax_command(entry):
    """Returns a compile command that only checks the syntax, and that reads the file from standard input."""
    words = shlex.split(entry["command"])
    kept, skip = [], False
    for word in words:
        if skip or word in ("-o", "-c", "-x", entry["file"]):
            skip = word in ("-o", "-x") and not skip
            continue
        kept.append(word)
    if entry["file"].endswith(".cu"):
        return kept + ["-w", "-c", "-o", os.devnull, "-x", "cu"]
    return kept + ["-w", "-fsyntax-only", "-x", "c++", "-"]


def nearest(entries, path):
    """Returns the entry of the source file that has the most leading folders in common with `path`."""
    def common(entry):
        return len(os.path.commonpath([entry["relative"], str(path)]).split("/")) if entry["relative"] else 0

    return max(entries, key=common)


def compile_alone(root, path, entry):
    """Returns the finding of one header. Returns None if the header compiles."""
    text = f'#include "{root / path}"\n'
    command = syntax_command(entry)
    if command[-1] == "cu":  # nvcc does not read standard input
        stub = root / ".cache" / "headers" / (str(path).replace("/", "_") + ".cu")
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(text)
        command.append(str(stub))
    result = subprocess.run(command, cwd=entry["directory"], input=text, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return None
    error = ERROR.search(result.stderr)
    if not error:
        return Finding(str(path), 1, f"does not compile alone: {result.stderr.strip()[:200]}")
    where = os.path.relpath(error["where"], root)
    if where == str(path):
        return Finding(where, int(error["line"]), f"does not compile alone: {error['what']}")
    return Finding(str(path), 1, f"does not compile alone: {where}:{error['line']}: {error['what']}")


def read_entries(root, build):
    """Returns the compile commands of this repository by language. Each command has `relative`, the path in the repository."""
    database = root / build / "compile_commands.json"
    if not database.exists():
        raise Skip(f"no {build}/compile_commands.json")
    entries = {"c++": [], "cuda": []}
    for entry in one_file_each(json.loads(database.read_text())):
        relative = os.path.relpath(entry["file"], root)
        if not relative.startswith(("..", "build")):
            entries["cuda" if relative.endswith(".cu") else "c++"].append(dict(entry, relative=relative))
    if not entries["c++"]:
        raise Skip(f"no source file in {build}/compile_commands.json")
    return entries


def check(root, files, options):
    entries = read_entries(root, options.build)
    headers = [path for path in files if path.suffix in HEADERS and path.parts[0] != "cmake"]  # every build compiles those in cmake/
    if not options.all:
        changed = changed_names(root)
        headers = [path for path in headers if str(path) in changed]
    known = {}
    compiled = [path for path in headers if entries["cuda"] or not needs_cuda(root, str(path), known)]
    if len(compiled) < len(headers):
        print(f"  headers: {len(headers) - len(compiled)} left out, because they need a build with CUDA")
    if not compiled:
        raise Skip("no header that this build can compile differs from the last commit")
    deadline = None if options.all else time.monotonic() + BUDGET_S
    late = []

    def look_at(path):
        if deadline and time.monotonic() > deadline:
            late.append(path)
            return None
        language = "cuda" if path.suffix == ".cuh" else "c++"
        return compile_alone(root, path, nearest(entries[language], path))

    with ThreadPoolExecutor(2) as pool:
        findings = [finding for finding in pool.map(look_at, compiled) if finding]
    if late:
        print(f"  headers: {len(late)} of {len(compiled)} not compiled within {BUDGET_S} s; `lint headers --all` has no time limit")
    return findings
