"""Writes and reads the token files of training: PREFIX.bin and PREFIX.idx in Megatron's indexed format.

PREFIX.bin holds only the tokens. PREFIX.idx, little-endian: 9 bytes `MMIDIDX\\0\\0`, u64 version 1, u8 type code, u64 number of
sequences S, u64 number of document marks D, i32 length of each sequence, i64 byte offset of each in PREFIX.bin, i64
document marks (the first 0, the last S). Here every sequence is one document, so D is S + 1.
"""
import struct

import numpy as np

MAGIC = b"MMIDIDX\0\0"
TYPE_CODES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def token_type(vocab_size):
    """Returns the smallest type that training supports and that can hold every token id."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def write_dataset(prefix, documents, vocab_size):
    """Writes the token files. documents: an iterable of lists of token ids. Returns how often each id occurs, int64
    [vocab_size].
    """
    dtype = np.dtype(token_type(vocab_size))
    counts, lengths = np.zeros(vocab_size, np.int64), []
    with open(f"{prefix}.bin", "wb") as stream:
        for document in documents:
            tokens = np.asarray(document, dtype=np.int64)
            if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocab_size:
                raise ValueError(f"{prefix}: token id {tokens.max()} in document {len(lengths)}, expected 0 to {vocab_size - 1}")
            lengths.append(tokens.size)
            counts += np.bincount(tokens, minlength=vocab_size)
            stream.write(tokens.astype(dtype.newbyteorder("<")).tobytes())
    write_index(f"{prefix}.idx", lengths, dtype)
    return counts


def write_index(path, lengths, dtype):
    code = next(code for code, known in TYPE_CODES.items() if np.dtype(known) == dtype)
    lengths = np.asarray(lengths, dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)[:-1])) * dtype.itemsize if lengths.size else lengths
    with open(path, "wb") as stream:
        stream.write(MAGIC + struct.pack("<QBQQ", 1, code, lengths.size, lengths.size + 1))
        stream.write(lengths.astype("<i4").tobytes())
        stream.write(offsets.astype("<i8").tobytes())
        stream.write(np.arange(lengths.size + 1, dtype="<i8").tobytes())


def read_dataset(prefix):
    """Returns (tokens of all sequences in index order, int64 [N]; index of each document's first token, int64 [D])."""
    with open(f"{prefix}.idx", "rb") as stream:
        index = stream.read()
    if index[:9] != MAGIC:
        raise ValueError(f"{prefix}.idx: not an indexed dataset")
    version, code, sequences, marks = struct.unpack_from("<QBQQ", index, 9)
    if version != 1 or code not in TYPE_CODES:
        raise ValueError(f"{prefix}.idx: version {version}, type code {code}: expected version 1 and a known code")
    dtype = np.dtype(TYPE_CODES[code]).newbyteorder("<")
    lengths = np.frombuffer(index, "<i4", sequences, 34).astype(np.int64)
    offsets = np.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    documents = np.frombuffer(index, "<i8", marks, 34 + 12 * sequences)
    data = np.fromfile(f"{prefix}.bin", dtype=np.uint8)
    parts = [data[offset:offset + length * dtype.itemsize].view(dtype) for offset, length in zip(offsets, lengths)]
    tokens = np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    return tokens, starts[documents]
