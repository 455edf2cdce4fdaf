"""Muon in numpy: the update of one matrix, in fp64 (docs/optimizers.md)."""
import numpy as np


def orthogonalized(u, steps=5):
    """Brings the singular values of u near 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = u / max(np.sqrt((u * u).sum()), 1e-7)
    if u.shape[0] > u.shape[1]:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if u.shape[0] > u.shape[1] else x


def scale_of(shape, scale):
    rows, cols = shape
    return 0.2 * np.sqrt(max(rows, cols)) if scale == "moonshot" else np.sqrt(max(1, rows / cols))


class Muon:
    """The momentum of one matrix. step() returns X and the new matrix."""

    def __init__(self, shape, momentum=0.95, nesterov=True, steps=5, scale="moonshot"):
        self.m, self.mu, self.nesterov, self.steps = np.zeros(shape), momentum, nesterov, steps
        self.factor = scale_of(shape, scale)

    def step(self, w, gradient, lr, decay):
        self.m = self.mu * self.m + (1 - self.mu) * gradient
        u = (1 - self.mu) * gradient + self.mu * self.m if self.nesterov else self.m
        x = orthogonalized(u, self.steps)
        return x, w * (1 - lr * decay) - lr * self.factor * x
