"""Runs clang-format in the version that tools/run/requirements.txt pins."""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from passed import Passed
from sources import CPP, Finding, Skip

REQUIREMENTS = "tools/run/requirements.txt"


def pinned_version(root):
    return re.search(r"^clang-format==(\S+)", (root / REQUIREMENTS).read_text(), re.M).group(1)


def find_clang_format(version):
    """Returns the first clang-format of the version, beside this Python or on PATH."""
    for tool in (os.path.join(os.path.dirname(sys.executable), "clang-format"), "clang-format"):
        try:
            answer = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout
        except OSError:
            continue
        if re.search(rf"version {re.escape(version)}\b", answer):
            return tool
    raise Skip(f"clang-format {version} is not installed")


def run_format(tool, root, paths):
    """Returns the warnings. Raises CalledProcessError if clang-format fails, so that no file counts as passed."""
    command = [tool, "--dry-run", *map(str, paths)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stderr


def parse(output):
    """Returns one finding for each line that clang-format would change."""
    seen = {}
    for path, line in re.findall(r"^(\S+?):(\d+):\d+: (?:warning|error): code should be clang-formatted", output, re.M):
        seen.setdefault((path, int(line)), None)
    return [Finding(path, line, "not formatted: clang-format -i " + path) for path, line in seen]


def check(root, files, _options):
    version = pinned_version(root)
    tool = find_clang_format(version)
    styles = [(root / path).read_bytes() for path in files if path.name == ".clang-format"]
    passed = Passed(root, "format", version.encode(), *styles)
    paths = passed.changed([path for path in files if path.suffix in CPP])
    shares = [paths[start::4] for start in range(4) if paths[start::4]]
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda share: run_format(tool, root, share), shares))
    findings = [finding for output in outputs for finding in parse(output)]
    passed.store(findings)
    return findings
