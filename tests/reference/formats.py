"""Quantizes matrices with numpy, independent of Tessera, and reads safetensors files."""
import json
import struct

import numpy

F32 = numpy.float32
MAX = numpy.finfo(F32).max


def safetensors(path):
    """Returns {name: (type, shape, bytes)}."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def bf16_matrix(entry):
    kind, shape, data = entry
    assert kind == "BF16", kind
    return (numpy.frombuffer(data, "<u2").astype(numpy.uint32) << 16).view(F32).reshape(shape)


def minifloats(exponent_bits, mantissa_bits, bias, count):
    """Returns the values of the first codes, which are not negative."""
    codes = numpy.arange(count)
    exponent, mantissa = codes >> mantissa_bits, (codes & ((1 << mantissa_bits) - 1)) / 2.0 ** mantissa_bits
    return numpy.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))


E4M3, E2M1 = minifloats(4, 3, 7, 127), minifloats(2, 1, 1, 8)


def encoded(values, table, sign_bit):
    """Rounds to the nearest number of the table, ties to an even code. Larger values become the largest number."""
    magnitude = numpy.minimum(numpy.abs(values.astype(numpy.float64)), table[-1])
    above = numpy.minimum(numpy.searchsorted(table, magnitude), len(table) - 1)
    below = numpy.maximum(above - 1, 0)
    to_above, to_below = table[above] - magnitude, magnitude - table[below]
    takes_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    return (numpy.where(takes_above, above, below) | numpy.where(numpy.signbit(values), sign_bit, 0)).astype(numpy.uint8)


def spread(scales, rows, cols, shape):
    return numpy.repeat(numpy.repeat(scales, rows, 0), cols, 1)[:shape[0], :shape[1]]


def amaxes(matrix, rows, cols):
    tall, wide = -(-matrix.shape[0] // rows), -(-matrix.shape[1] // cols)
    padded = numpy.zeros((tall * rows, wide * cols), F32)
    padded[:matrix.shape[0], :matrix.shape[1]] = numpy.abs(matrix)
    return padded.reshape(tall, rows, wide, cols).max((1, 3))


def quantized(wire, matrix):
    """Returns {suffix of the name: bytes} for a bf16 matrix, as docs/formats.md defines folders and formats."""
    with numpy.errstate(divide="ignore", over="ignore"):
        if wire in ("fp8", "fp8_block"):
            tile = (128, 128) if wire == "fp8_block" else matrix.shape
            amax = amaxes(matrix, *tile)
            multiplier = numpy.where(amax > 0, numpy.minimum(F32(448) / amax, MAX), F32(1)).astype(F32)
            if wire == "fp8_block":
                multiplier = (multiplier.view(numpy.uint32) & numpy.uint32(0xFF800000)).view(F32)
            codes = encoded(matrix * spread(multiplier, *tile, matrix.shape), E4M3, 0x80)
            return {"": codes.tobytes(), "_scale" if wire == "fp8" else "_scale_inv": (F32(1) / multiplier).astype(F32).tobytes()}
        if wire == "mxfp8":
            mantissa, exponent = numpy.frexp(amaxes(matrix, 1, 32) * F32(1 / 448))
            code = numpy.clip(exponent - (mantissa == 0.5) + 127, 0, 254) * (mantissa > 0)
            codes = encoded(matrix * spread((2.0 ** (127 - code)).astype(F32), 1, 32, matrix.shape), E4M3, 0x80)
            return {"": codes.tobytes(), "_scale": code.astype(numpy.uint8).tobytes()}
        whole = numpy.abs(matrix).max()
        factor = F32(2688) / whole if whole > 0 else F32(1)
        tiles = encoded(amaxes(matrix, 16, 16) * (factor * F32(1 / 6)), E4M3, 0x80)
        multiplier = numpy.minimum(F32(1) / (E4M3[tiles].astype(F32) * (F32(1) / factor)), MAX).astype(F32)
        codes = encoded(matrix * spread(multiplier, 16, 16, matrix.shape), E2M1, 0x8)
        return {"": (codes[:, ::2] | codes[:, 1::2] << 4).tobytes(), "_scale": numpy.repeat(tiles, 16, 0)[:matrix.shape[0]].tobytes(),
                "_scale_2": (F32(whole) / F32(2688)).tobytes()}
