"""clang-tidy on the .cpp files that differ from the last commit, within a time budget; what passed is remembered."""
import hashlib
import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from sources import Finding, Skip

BUDGET_S = 60
MEMORY = ".cache/tidy-passed.json"


def changed_files(root):
    result = subprocess.run(["git", "-C", str(root), "status", "--porcelain", "-z", "--untracked-files=all"],
                            capture_output=True, check=False)
    if result.returncode != 0:
        raise Skip("not a git checkout")
    return {entry[3:] for entry in result.stdout.decode().split("\0") if entry[3:].endswith(".cpp")}


def parse(output, root):
    """Findings of clang-tidy's output. Errors of the parser itself are the compiler's business."""
    findings = []
    for path, line, text in re.findall(r"^(/\S+?):(\d+):\d+: (?:warning|error): (.*)$", output, re.M):
        if path.startswith(f"{root}/") and "[clang-diagnostic" not in text:
            findings.append(Finding(path[len(str(root)) + 1:], int(line), text))
    return findings


def fingerprint(root, path):
    return hashlib.sha256((root / path).read_bytes() + (root / ".clang-tidy").read_bytes()).hexdigest()


def check(root, _files, options):
    tool = shutil.which("clang-tidy")
    database = root / options.build / "compile_commands.json"
    if not tool or not database.exists():
        raise Skip("no clang-tidy here" if not tool else f"no {options.build}/compile_commands.json")
    compiled = {entry["file"] for entry in json.loads(database.read_text())}
    paths = sorted(path for path in changed_files(root) if str(root / path) in compiled)
    if not paths:
        raise Skip("no .cpp file differs from the last commit")
    memory = root / MEMORY
    passed = set(json.loads(memory.read_text())) if memory.exists() else set()
    deadline = time.monotonic() + BUDGET_S
    left_out = []

    def look_at(path):
        mark = fingerprint(root, path)
        if mark in passed:
            return []
        if time.monotonic() > deadline:
            left_out.append(path)
            return []
        command = [tool, "-p", str(root / options.build), "--quiet", str(root / path)]
        found = parse(subprocess.run(command, capture_output=True, text=True, check=False).stdout, root)
        if not found:
            passed.add(mark)
        return found

    with ThreadPoolExecutor(2) as pool:
        findings = [finding for found in pool.map(look_at, paths) for finding in found]
    memory.parent.mkdir(exist_ok=True)
    memory.write_text(json.dumps(sorted(passed)))
    if left_out:
        print(f"  tidy: {len(left_out)} of {len(paths)} changed files not looked at after {BUDGET_S} s; run lint again")
    return sorted(set(findings), key=str)
