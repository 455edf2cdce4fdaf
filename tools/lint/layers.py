"""Checks includes: the layer table, the folders of third-party headers, and cycles of includes within a layer. Checks that one
file parses JSON."""
import re

import circles
from sources import CPP, Finding, read

# The layers that each layer may include besides itself. README.md shows the same table.
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
# Each of these layers may include the layers before it in this list and all layers of the table above.
UPPER = ("nn", "models", "predict", "train", "telemetry", "settings", "hub", "plan", "launch", "serve", "run", "bench")
for _name in UPPER:
    LAYERS[_name] = list(LAYERS)
for _name in ("nn", "models", "predict"):
    LAYERS[_name] = [layer for layer in LAYERS[_name] if layer not in ("data", "checkpoint")]
TENSOR_LAYERS = ("ops", "apps", "examples", *UPPER)

# Third-party headers and the layers, or folders of a layer, that may include them. The first matching pattern applies.
ROOMS = [
    (r"torch/torch\.h|torch/all\.h|torch/extension\.h", (), "all of torch costs minutes of compile time"),
    (r"torch/csrc/distributed/|c10/util/Logging\.h", ("rendezvous/store",), "c10d"),
    (r"torch/csrc/autograd/|torch/autograd\.h", ("nn", "examples"), "autograd"),
    (r"ATen/|c10/|torch/", TENSOR_LAYERS, "the tensor library"),
    (r"mpi\.h$|mpi/", ("comm/mpi",), "MPI"),
    (r"nccl\.h$", ("comm/nccl",), "NCCL"),
    (r"cublasLt|cudnn", ("ops",), "cuBLASLt and cuDNN"),
    (r"cupti", ("bench",), "CUPTI"),
]
# JSON is parsed in one file, which limits its depth.
JSON_PARSER = re.compile(r"json::(parse|accept|sax_parse|from_\w+)\s*\(")
JSON_FILE = "tessera/base/json_file.cpp"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.M)


def folder_of(path):
    """Returns the layer of a file, or apps or bench. The layer of tests/X is X. Returns None for other folders."""
    parts = path.parts
    if len(parts) >= 3 and parts[0] in ("tessera", "tests"):
        return parts[1]
    return parts[0] if parts[0] in ("apps", "bench", "examples") else None


def allowed_layers(folder, is_test):
    """Returns the layers that a folder may include. Returns None if it may include all layers."""
    if folder in LAYERS:
        return set(LAYERS[folder]) | {folder}
    return None if folder in ("apps", "bench", "examples") or is_test else set()


def check_include(path, header):
    """Returns the message about one include. Returns None if the include is allowed."""
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
                return f"includes <{header}>: a CUDA file may not include torch headers"
            if folder in rooms or "/".join(path.parts[1:3]) in rooms:
                return None
            return f"includes <{header}>: {what}; allowed in {', '.join(rooms) or 'no folder'}"
    return None


# Stems that several headers may have: one header in each backend, or an operator and its autograd function.
SHARED_STEMS = {"world": ("comm",), "backend": ("comm",)}
PAIRED_LAYERS = {"ops", "nn"}


def shared_stems(files):
    """Finds headers of tessera/ with the same stem, so that a search for a name finds one file."""
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
            findings.append(Finding(str(paths[0]), 1, f"the stem '{stem}' is also the stem of {others}"))
    return findings


def json_parsers(path, text):
    if path.parts[0] not in ("tessera", "apps") or str(path) == JSON_FILE:
        return []
    return [Finding(str(path), text.count("\n", 0, match.start()) + 1, f"parses JSON: expected base::parse_json ({JSON_FILE})")
            for match in JSON_PARSER.finditer(text)]


def check(root, files, _options):
    findings = shared_stems(files) + circles.check(root, files)
    for path in files:
        if path.suffix not in CPP or folder_of(path) is None:
            continue
        text = read(root, path)
        if path.parts[0] == "tessera" and folder_of(path) not in LAYERS:
            findings.append(Finding(str(path), 1, f"folder {folder_of(path)} is not in the layer table"))
            continue
        findings += json_parsers(path, text)
        for match in INCLUDE.finditer(text):
            complaint = check_include(path, match.group(1))
            if complaint:
                findings.append(Finding(str(path), text.count("\n", 0, match.start()) + 1, complaint))
    return findings
