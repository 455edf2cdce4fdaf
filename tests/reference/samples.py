"""Returns the samples of a step, as docs/numerics.md defines them. Their order is a permutation without a table."""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from indexed_dataset import read_dataset  # noqa: E402

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def permuted(seed, epoch, size, index, data_set=0):
    """Returns the sample at `index` of an epoch: eight Feistel rounds, repeated until the result is below `size`."""
    key = mix((seed + GOLDEN) & MASK)
    key = mix((key + epoch + GOLDEN) & MASK)
    key = mix((key + data_set + GOLDEN) & MASK)
    half = 1
    while 4 ** half < size:
        half += 1
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for r in range(8):
            left, right = right, left ^ (mix(mix((key + (r + 1) * GOLDEN) & MASK) ^ right) & low)
        index = left << half | right
        if index < size:
            return index


class Samples:
    def __init__(self, prefix, seq_len, seed, mask_documents):
        self.tokens, self.starts = read_dataset(prefix)
        self.seq_len, self.seed, self.mask_documents = seq_len, seed, mask_documents
        self.count = (self.tokens.size - 1) // seq_len

    def of_step(self, step, global_batch):
        """Returns the samples of step `step` (1, 2, ...) in order."""
        first = (step - 1) * global_batch
        return [self.sample(permuted(self.seed, position // self.count, self.count, position % self.count))
                for position in range(first, first + global_batch)]

    def in_order(self):
        """Returns every sample once, in file order."""
        return [self.sample(number) for number in range(self.count)]

    def sample(self, number):
        first, length = number * self.seq_len, self.seq_len
        tokens, targets = self.tokens[first:first + length], self.tokens[first + 1:first + length + 1].copy()
        positions = np.arange(length)
        mask = np.tril(np.ones((length, length), bool))
        if self.mask_documents:
            document = np.searchsorted(self.starts, np.arange(first, first + length + 1), side="right")
            targets[document[1:] != document[:-1]] = -1
            begins = np.concatenate(([True], document[1:-1] != document[:-2]))
            positions = positions - np.maximum.accumulate(np.where(begins, positions, 0))
            mask &= document[:-1, None] == document[None, :-1]
        return {"tokens": tokens, "targets": targets, "positions": positions, "mask": mask}
