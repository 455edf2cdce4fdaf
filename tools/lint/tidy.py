"""Runs clang-tidy on the .cpp files that differ from the last commit, within a time budget. Skips files that passed before."""
import hashlib
import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sources import Finding, Skip

MEMORY = ".cache/tidy-passed.json"
COMMANDS = ".cache/tidy"


def changed_files(root):
    result = subprocess.run(["git", "-C", str(root), "status", "--porcelain", "-z", "--untracked-files=all"],
                            capture_output=True, check=False)
    if result.returncode != 0:
        raise Skip("not a git checkout")
    return {entry[3:] for entry in result.stdout.decode().split("\0") if entry[3:].endswith(".cpp")}


def parse(output, root):
    """Returns the findings in the output of clang-tidy. Errors of its parser do not count, because g++ compiles the code."""
    findings = []
    for path, line, text in re.findall(r"^(/\S+?):(\d+):\d+: (?:warning|error): (.*)$", output, re.M):
        if path.startswith(f"{root}/") and "[clang-diagnostic" not in text:
            findings.append(Finding(path[len(str(root)) + 1:], int(line), text))
    return findings


def parser_error(output):
    """Returns the first error of clang's parser, which means that a part of the file was not checked. Returns None without an
    error."""
    error = re.search(r"error: (.*) \[clang-diagnostic-error\]$", output, re.M)
    return error and error[1]


def one_file_each(entries):
    """Returns compile commands with one entry for each source file, where CMake compiles several together. Removes
    precompiled headers, because only the compiler that created them can read them."""
    result = []
    for entry in entries:
        entry = dict(entry, command=re.sub(r" (-include \S*cmake_pch\.hxx|-Winvalid-pch)(?=\s|$)", "", entry["command"]))
        path = Path(entry["file"])
        if path.name.startswith("unity_"):
            sources = re.findall(r'^#include "(.*\.cpp)"$', path.read_text(), re.M)
            result += [dict(entry, file=source, command=entry["command"].replace(str(path), source)) for source in sources]
        else:
            result.append(entry)
    return result


def fingerprint(root, path):
    return hashlib.sha256((root / path).read_bytes() + (root / ".clang-tidy").read_bytes()).hexdigest()


def check(root, _files, options):
    tool = shutil.which("clang-tidy")
    database = root / options.build / "compile_commands.json"
    if not tool or not database.exists():
        raise Skip("clang-tidy is not installed" if not tool else f"no {options.build}/compile_commands.json")
    entries = one_file_each(json.loads(database.read_text()))
    compiled = {entry["file"] for entry in entries}
    paths = [path for path in changed_files(root) if str(root / path) in compiled and (root / path).exists()]
    paths.sort(key=lambda path: (root / path).stat().st_mtime, reverse=True)  # the newest first
    if not paths:
        raise Skip("no .cpp file differs from the last commit")
    commands = root / COMMANDS
    commands.mkdir(parents=True, exist_ok=True)
    (commands / "compile_commands.json").write_text(json.dumps(entries))
    memory = root / MEMORY
    passed = set(json.loads(memory.read_text())) if memory.exists() else set()
    deadline = time.monotonic() + options.tidy_seconds
    left_out, unread = [], {}

    def look_at(path):
        mark = fingerprint(root, path)
        if mark in passed:
            return []
        if time.monotonic() > deadline:
            left_out.append(path)
            return []
        command = [tool, "-p", str(commands), "--quiet", str(root / path)]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = parse(output, root)
        if error := parser_error(output):
            unread[path] = error
        elif not found:
            passed.add(mark)
        return found

    with ThreadPoolExecutor(2) as pool:
        findings = [finding for found in pool.map(look_at, paths) for finding in found]
    memory.parent.mkdir(exist_ok=True)
    memory.write_text(json.dumps(sorted(passed)))
    if left_out:
        print(f"  tidy: {len(left_out)} of {len(paths)} changed files not checked within {options.tidy_seconds} s; run lint again")
    for path, error in sorted(unread.items()):
        print(f"  tidy: clang cannot read all of {path}: {error}")
    if len(unread) == len(paths) and not findings:
        raise Skip("clang can read no changed file")
    return sorted(set(findings), key=str)
