"""Lists the files of the repository, and removes comments and strings from C++ text."""
import os
import pathlib
import re
import subprocess
from dataclasses import dataclass

CPP = (".h", ".cpp", ".cu", ".cuh")
NOT_OURS = {".git", ".venv", ".cache", "build", "data", "runs", "__pycache__"}


@dataclass(frozen=True)
class Finding:
    """A place in a file and a message that names the broken rule."""
    path: str
    line: int
    what: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.what}"


class Skip(Exception):
    """Raised if a check cannot run on this machine. The message is the reason."""


def repository_files(root):
    """Returns the tracked files and the new files that git does not ignore, relative to root. Without git, it returns all files
    outside the folders of NOT_OURS."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode == 0:
        names = {name for name in result.stdout.decode().split("\0") if name}
    else:
        names = set()
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in NOT_OURS]
            names.update(os.path.relpath(os.path.join(folder, name), root) for name in files)
    return [pathlib.PurePosixPath(name) for name in sorted(names) if (root / name).is_file()]


def read(root, path):
    return (root / path).read_text(encoding="utf-8", errors="replace")


TOKEN = re.compile(
    r"""//[^\n]*                             # comment to the end of the line
      | /\*.*?\*/                            # comment of several lines
      | R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"   # raw string
      | "(?:\\.|[^"\\\n])*"                  # string
      | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'  # character, not a digit separator
    """, re.VERBOSE | re.DOTALL)


def blank(match):
    """Replaces a comment or a string by blanks and keeps its line breaks. A string keeps its quotes, so that the code around
    it still parses.
    """
    text = match.group(0)
    return ("" if text.startswith("/") else '""') + "\n" * text.count("\n")


def strip_cpp(text):
    """Returns C++ text without comments and contents of strings. Line numbers do not change."""
    return TOKEN.sub(blank, text)
