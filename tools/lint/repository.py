"""Refuses large files, generated files, paths that exist on one machine only, and scripts that are not executable."""
import os
import re

from sources import Finding

SIZE_LIMIT = 1 << 20
GENERATED = re.compile(
    r"\.(o|a|so|pyc|pt|pth|bin|idx|safetensors|npy|npz|whl|zip|gz|xz|dz|log|tfevents.*)$|(^|/)compile_commands\.json$"
    r"|^(build|runs|data|\.venv|\.cache)/")
# A home folder or a working folder of one machine.
MACHINE_PATH = re.compile(rb"(?<![\w./}$])/(?:home|root|work|Users)/\w")


def check(root, files, _options):
    findings = []
    for path in files:
        size = (root / path).stat().st_size
        if size > SIZE_LIMIT:
            findings.append(Finding(str(path), 1, f"the file has {size} bytes, limit {SIZE_LIMIT}"))
            continue
        if GENERATED.search(str(path)):
            findings.append(Finding(str(path), 1, "the file is generated or downloaded: do not commit it"))
        content = (root / path).read_bytes()
        if content.startswith(b"#!") and not os.access(root / path, os.X_OK):
            findings.append(Finding(str(path), 1, "the file begins with #! but is not executable"))
        for match in MACHINE_PATH.finditer(content):
            line = content.count(b"\n", 0, match.start()) + 1
            findings.append(Finding(str(path), line, "contains the path of a folder of one machine"))
    return findings
