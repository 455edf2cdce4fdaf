"""The layer table: what each folder may include, of ours and of others; circles of includes within a layer."""
import re

import circles
from sources import CPP, Finding, read

# What a layer may include besides itself (docs/architecture.md draws the same table).
LAYERS = {
    "base": [],
    "layout": ["base"],
    "mesh": ["base"],
    "quant": ["base"],
    "rendezvous": ["base"],
    "comm": ["base", "layout", "mesh", "quant", "rendezvous"],
    "schedule": ["base", "mesh"],
    "shard": ["base", "layout", "mesh", "quant", "comm", "schedule"],
    "runtime": ["base", "layout", "mesh", "quant", "rendezvous", "comm", "schedule", "shard"],
    "ops": ["base", "quant"],
    "data": ["base"],
    "checkpoint": ["base", "layout", "quant", "comm"],
}
# Each of these may include all that stand before it, and the layers above.
UPPER = ("nn", "models", "predict", "train", "run", "bench")
for _name in UPPER:
    LAYERS[_name] = list(LAYERS)
for _name in ("nn", "models", "predict"):
    LAYERS[_name] = [layer for layer in LAYERS[_name] if layer not in ("data", "checkpoint")]
TENSOR_LAYERS = ("ops", "apps", *UPPER)

# Third-party headers and the rooms they stay in, layers or folders of one; the first pattern that matches decides.
ROOMS = [
    (r"torch/torch\.h|torch/all\.h|torch/extension\.h", (), "all of torch costs minutes of compile time"),
    (r"torch/csrc/distributed/|c10/util/Logging\.h", ("rendezvous/store",), "c10d"),
    (r"torch/csrc/autograd/|torch/autograd\.h", ("nn",), "autograd"),
    (r"ATen/|c10/|torch/", TENSOR_LAYERS, "the tensor library"),
    (r"mpi\.h$|mpi/", ("comm/mpi",), "MPI"),
    (r"nccl\.h$", ("comm/nccl",), "NCCL"),
    (r"cublasLt|cudnn", ("ops",), "cuBLASLt and cuDNN"),
    (r"cupti", ("bench",), "CUPTI"),
]
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


def folder_of(path):
    """The layer a file belongs to, or apps/bench; tests/X belongs to X. None: outside the table."""
    parts = path.parts
    if len(parts) >= 3 and parts[0] in ("tessera", "tests"):
        return parts[1]
    return parts[0] if parts[0] in ("apps", "bench", "examples") else None


def allowed_layers(folder, is_test):
    """None: all of them. A test may use the fakes and fixtures of its own folder only."""
    if folder in LAYERS:
        return set(LAYERS[folder]) | {folder}
    return None if folder in ("apps", "bench", "examples") or is_test else set()


def check_include(path, header):
    """The complaint about one include, or None."""
    folder = folder_of(path)
    is_test = path.parts[0] == "tests"
    if header.startswith(("../", "./")):
        return f'includes "{header}": expected a path from the root of the repository'
    ours = re.match(r"tessera/([a-z_]+)/", header)
    if ours:
        allowed = allowed_layers(folder, is_test)
        if allowed is not None and ours.group(1) not in allowed:
            return f'{folder} includes "{header}": the layer table allows {", ".join(sorted(allowed)) or "nothing"}'
        return None
    for pattern, rooms, what in ROOMS:
        if re.match(pattern, header):
            if path.suffix in (".cu", ".cuh") and re.match(r"ATen/|c10/|torch/", header):
                return f"includes <{header}>: no torch header in a CUDA file"
            if folder in rooms or "/".join(path.parts[1:3]) in rooms:
                return None
            return f"includes <{header}>: {what} stays in {', '.join(rooms) or 'no folder'}"
    return None


# Headers that may share a stem with others: one way in a backend, and an operator beside its autograd function.
SHARED_STEMS = {"world": ("comm",), "backend": ("comm",)}
PAIRED_LAYERS = {"ops", "nn"}


def shared_stems(files):
    """Headers of tessera/ whose stem another header has too: a newcomer who searches a name finds one file."""
    by_stem = {}
    for path in files:
        if path.parts[0] == "tessera" and path.suffix in (".h", ".cuh"):
            by_stem.setdefault(path.stem, []).append(path)
    findings = []
    for stem, paths in sorted(by_stem.items()):
        layers = [path.parts[1] for path in paths]
        allowed = all(layer in SHARED_STEMS.get(stem, ()) for layer in layers) or (
            len(set(layers)) == len(layers) and set(layers) <= PAIRED_LAYERS)
        if len(paths) > 1 and not allowed:
            others = ", ".join(map(str, paths[1:]))
            findings.append(Finding(str(paths[0]), 1, f"the stem '{stem}' is that of {others} too"))
    return findings


def check(root, files, _options):
    findings = shared_stems(files) + circles.check(root, files)
    for path in files:
        if path.suffix not in CPP or folder_of(path) is None:
            continue
        text = read(root, path)
        if path.parts[0] == "tessera" and folder_of(path) not in LAYERS:
            findings.append(Finding(str(path), 1, f"folder {folder_of(path)} is not in the layer table"))
            continue
        for match in INCLUDE.finditer(text):
            complaint = check_include(path, match.group(1))
            if complaint:
                findings.append(Finding(str(path), text.count("\n", 0, match.start()) + 1, complaint))
    return findings
