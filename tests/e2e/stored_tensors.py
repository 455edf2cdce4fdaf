"""Reads the logical tensors of a checkpoint as docs/checkpoint.md defines the format, without the program."""
import hashlib
import json
import math
import pathlib
import struct

ELEMENT_BYTES = {"u8": 1, "i32": 4, "i64": 8, "bf16": 2, "fp32": 4, "fp64": 8}


def newest_checkpoint(folder):
    """Returns the folder if it is a checkpoint, or else the newest checkpoint of the run in the folder."""
    folder = pathlib.Path(folder)
    if (folder / "manifest.json").exists():
        return folder
    return max(path for path in (folder / "checkpoints").iterdir() if path.suffix == "")


def read_part(path):
    """Returns {name: bytes of the tensor} of a safetensors file."""
    data = memoryview(path.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(bytes(data[8:start]))
    header.pop("__metadata__", None)
    return {name: data[start + entry["data_offsets"][0]:start + entry["data_offsets"][1]] for name, entry in header.items()}


def logical_bytes(tensor, parts):
    """Returns the elements of the tensor in row-major order."""
    size = ELEMENT_BYTES[tensor["dtype"]]
    width = tensor["shape"][-1] * size
    result = bytearray(math.prod(tensor["shape"]) * size)
    written = 0
    for file, index, row, rows, col, cols in tensor["pieces"]:
        piece = parts[file][f"{tensor['kind']}/{tensor['name']}/{index}"]
        assert len(piece) == rows * cols * size, (tensor["name"], file, index)
        written += len(piece)
        if cols * size == width:
            result[row * width:(row + rows) * width] = piece
            continue
        for i in range(rows):
            start = (row + i) * width + col * size
            result[start:start + cols * size] = piece[i * cols * size:(i + 1) * cols * size]
    assert written == len(result), f"the pieces of {tensor['name']} have {written} bytes, expected {len(result)}"
    return bytes(result)


def logical_tensors(folder):
    """Returns {KIND/NAME: (type, shape, logical bytes)} of a checkpoint or of the newest checkpoint of a run."""
    checkpoint = newest_checkpoint(folder)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    parts = [read_part(checkpoint / file["name"]) for file in manifest["files"]]
    return {f"{tensor['kind']}/{tensor['name']}": (tensor["dtype"], tuple(tensor["shape"]), logical_bytes(tensor, parts))
            for tensor in manifest["tensors"]}


def tensor_hashes(folder):
    """Returns {KIND/NAME: (type, shape, hash of the logical bytes)} of a checkpoint or of the newest checkpoint of a run."""
    return {name: (dtype, shape, hashlib.sha256(data).hexdigest()) for name, (dtype, shape, data) in logical_tensors(folder).items()}
