"""Compares folders before and after a refused run, and creates faulty checkpoints with valid checksums."""
import copy
import hashlib
import json
import pathlib
import re

from program import run


def content(*folders):
    """Returns {path: hash of a file, target of a link, "folder" or "pipe"} for the folders and everything in them."""
    found = {}
    for folder in map(pathlib.Path, folders):
        for path in [folder, *folder.rglob("*")] if folder.exists() else []:
            if path.is_symlink():
                found[path] = str(path.readlink())
            elif path.is_file():
                found[path] = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                found[path] = "folder" if path.is_dir() else "pipe"
    return found


def read_manifest(checkpoint):
    return json.loads((checkpoint / "manifest.json").read_text())


def write_manifest(manifest, *checkpoints):
    """Writes the manifest into each checkpoint. The checksum is read from the program's error, because Python has no XXH3."""
    hashed = "unknown"
    for checkpoint in checkpoints:
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        (checkpoint / "manifest.xxh3").write_text(f"{hashed}\n")
        if hashed == "unknown":
            hashed = re.search(r"its xxh3_128 is ([0-9a-f]{32})", run("inspect", checkpoint).stderr)[1]
            (checkpoint / "manifest.xxh3").write_text(f"{hashed}\n")


def changed(manifest, path, value):
    """Returns a copy with another value at a path of keys. With the value None, the last key is removed."""
    result = copy.deepcopy(manifest)
    at = result
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return result
