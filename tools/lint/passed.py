"""Remembers which files passed a check, so that the next run of the check reads only files that have changed."""
import hashlib
import json
import os


class Passed:
    """The files that passed the check `name`, by content, in .cache/lint. `inputs` are all bytes that the result depends on, except
    the checked file: with other inputs, no file counts as passed."""

    def __init__(self, root, name, *inputs):
        self.root, self.file = root, root / ".cache" / "lint" / f"{name}.json"
        self.key = digest(b"\0".join(inputs))
        try:
            stored = json.loads(self.file.read_text())
        except (OSError, ValueError):
            stored = {}
        known = stored.get("files", {}) if isinstance(stored, dict) and stored.get("key") == self.key else {}
        self.known = known if isinstance(known, dict) else {}
        self.current = {}

    def changed(self, files):
        """Returns the files that have not passed with their present content."""
        self.current = {str(path): digest((self.root / path).read_bytes()) for path in files}
        return [path for path in files if self.known.get(str(path)) != self.current[str(path)]]

    def store(self, findings):
        """Stores that all files of changed() have passed, except the files with findings."""
        bad = {finding.path for finding in findings}
        files = {path: content for path, content in self.current.items() if path not in bad}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        written = self.file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps({"key": self.key, "files": files}))
        os.replace(written, self.file)


def digest(content):
    return hashlib.sha256(content).hexdigest()
