#!/usr/bin/env python3
"""Models with experts: a pairwise covering set of meshes, models and settings, drawn with a printed seed, has equal bits.

At fixed tp, etp, ep, dp and model, each run has the bits of a run with the smallest gtp of its kind of mesh, egtp 1 and the default
settings: the losses, norms and losses of routers of 20 steps, and every tensor of the checkpoint, moments included.

TESSERA_E2E_ROWS is the number of rows (8). TESSERA_E2E_MINUTES draws covering sets until this time has passed instead.
TESSERA_E2E_SEED repeats the rows of a seed. Without TESSERA_E2E_MINUTES, runs under mpirun have at most 4 ranks, because each
process loads libtorch.
"""
import itertools
import json
import os
import random
import shutil
import time
import unittest

from program import MPIRUN, ROOT, bits, metrics, scratch, tessera, write_tokens
from summary import run_cases

SEED = int(os.environ.get("TESSERA_E2E_SEED") or time.time_ns() % 10**6)
ROWS = int(os.environ.get("TESSERA_E2E_ROWS") or 8)
MINUTES = float(os.environ.get("TESSERA_E2E_MINUTES") or 0)
STEPS = 20
# (tp, etp, ep, dp): the values of gtp. Worlds have up to 8 ranks.
KINDS = {(1, 1, 1, 1): (1, 2, 4, 8), (1, 1, 2, 1): (2, 4, 8), (1, 1, 4, 1): (4, 8), (2, 1, 2, 1): (1, 2, 4), (2, 2, 1, 1): (1, 2, 4),
         (2, 2, 2, 1): (2, 4), (1, 1, 1, 2): (1, 2, 4), (1, 1, 2, 2): (2, 4), (2, 2, 1, 2): (1, 2), (3, 3, 1, 1): (1, 2)}
FACTORS = {
    "mesh": [(kind, gtp) for kind, degrees in KINDS.items() for gtp in degrees if (kind, gtp) != (kind, degrees[0]) or gtp > 1],
    "storage": ["least", "half", "most"],  # egtp, among the degrees that divide the mesh
    "model": ["mixtral", "qwen3_moe"],
    "experts": [8, 7, 10],
    "k": [1, 2, "E"],
    "micro_batches": [1, 3],
    # dtype, and the formats of wire and backward wire
    "types": [("fp32",), ("bf16",), ("fp64",), ("bf16", "nvfp4", "mxfp8"), ("bf16", "mxfp8", "nvfp4"), ("bf16", "fp8_block"), ("bf16", "fp8")],
    "recompute": ["none", "selective", "full", "auto"],
    "gather": ["auto", "min"],
    "reduce": ["auto", "min"],
    "poison": ["off", "on"],
    "delays": [0, 5],
    "zero": ["on", "off"],
    "coalesce": [1, "1MiB", "64MiB"],  # 1: every weight is a transfer of its own
    "aux": ["layer", "pooled"],
    "backend": ["local", "mpi"] if MPIRUN else ["local"],
}
PROBLEM = ("model", "experts", "k", "micro_batches", "types", "aux")
# Few numbers divide these sizes.
SIZES = {"vocab_size": 43, "hidden_size": 13, "intermediate_size": 11, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 3, "head_dim": 4}
# With number formats: 4-bit numbers need even sizes on each rank, and tp ranks must not share a tile of key/value heads.
FORMAT_SIZES = SIZES | {"hidden_size": 26, "intermediate_size": 24, "num_key_value_heads": 6}


def write_model(path, row):
    """Mixtral has experts in both layers. Qwen3-MoE has a dense layer."""
    base = {"mixtral": "mixtral-tiny-odd", "qwen3_moe": "qwen3-moe-tiny-odd"}[row["model"]]
    has_formats = len(row["types"]) > 1
    config = json.loads((ROOT / "configs" / base / "config.json").read_text()) | (FORMAT_SIZES if has_formats else SIZES)
    count = "num_local_experts" if row["model"] == "mixtral" else "num_experts"
    config |= {count: row["experts"], "num_experts_per_tok": row["experts"] if row["k"] == "E" else row["k"],
               "router_aux_loss_coef": 0.02}
    if row["model"] == "qwen3_moe":
        config["moe_intermediate_size"] = 12 if has_formats else 7
    path.write_text(json.dumps(config))
    return path


def type_flags(types):
    return [word for flag, value in zip(("--dtype", "--wire-format", "--wire-format-backward"), types) for word in (flag, value)]


def egtp_of(row):
    (tp, etp, ep, _), gtp = row["mesh"]
    most = tp * gtp // (etp * ep)
    degrees = [degree for degree in range(1, most + 1) if most % degree == 0]
    return {"least": 1, "half": degrees[len(degrees) // 2], "most": most}[row["storage"]]


def is_allowed(row):
    (tp, _, _, dp), gtp = row["mesh"]
    return MINUTES > 0 or row["backend"] == "local" or tp * gtp * dp <= 4


def pairs_of(row):
    return {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(sorted(row), 2)}


def covering_rows(factors, draw, allows, attempts=30):
    """Yields rows {factor: value}, each with many pairs that no earlier row has, until a number of attempts finds none.

    factors: {name: values}. draw: a random.Random. allows(row): whether a row may be drawn."""
    def random_row():
        while True:
            row = {name: draw.choice(values) for name, values in factors.items()}
            if allows(row):
                return row

    def improved(row, covered):
        """Replaces single values as long as that adds new pairs."""
        best = len(pairs_of(row) - covered)
        for name in draw.sample(list(factors), len(factors)):
            for value in factors[name]:
                other = row | {name: value}
                if allows(other) and (found := len(pairs_of(other) - covered)) > best:
                    row, best = other, found
        return row, best

    covered, misses = set(), 0
    while misses < attempts:
        row, new = max((improved(random_row(), covered) for _ in range(5)), key=lambda found: found[1])
        misses = misses + 1 if new == 0 else 0
        if new:
            covered |= pairs_of(row)
            yield row


class ExpertPairs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("expert-pairs")
        cls.data = write_tokens(cls.folder / "tokens", SIZES["vocab_size"])
        cls.expected = {}

    def train(self, name, row, mesh, egtp, *flags, backend="local"):
        (tp, etp, ep, dp), gtp = mesh
        out = self.folder / name
        (_, row_gtp) = row["mesh"]
        tessera("train", "--model", write_model(self.folder / f"{name}.json", row), "--data", self.data, "--seq-len", 8, "--seed", 7,
                "--lr", 3e-3, "--clip", 0.3, "--router-z-loss", 1e-3, "--moe-aux", row["aux"], *type_flags(row["types"]), "--steps", STEPS,
                "--global-batch", row_gtp * dp * row["micro_batches"], "--tp", tp, "--gtp", gtp, "--dp", dp, "--etp", etp, "--ep", ep,
                "--egtp", egtp, "--sequence-parallel", "on" if tp > 1 else "off", "--backend", backend, *flags, "--out", out,
                mpi_ranks=tp * gtp * dp if backend == "mpi" else None)
        found = bits(out), [(line["aux_loss"], line["z_loss"], line["expert_load"]) for line in metrics(out)]
        self.assertEqual(STEPS, len(found[1]))
        shutil.rmtree(out)
        return found

    def check(self, number, row):
        kind, gtp = row["mesh"]
        problem = (kind, gtp, *(row[name] for name in PROBLEM))
        if problem not in self.expected:
            self.expected[problem] = self.train(f"expected-{number}", row, (kind, KINDS[kind][0]), 1)
        flags = ["--recompute", row["recompute"], "--gather-budget", row["gather"], "--reduce-budget", row["reduce"],
                 "--debug-poison", row["poison"], "--debug-delays", row["delays"], "--zero", row["zero"], "--coalesce", row["coalesce"]]
        if row["recompute"] == "auto":
            flags += ["--activation-budget", 60000 if row["types"] == ("fp64",) else 30000]
        found = self.train(f"run-{number}", row, row["mesh"], egtp_of(row), *flags, backend=row["backend"])
        self.assertEqual(self.expected[problem], found, (SEED, number, row))

    def test_pairs(self):
        start, draw, number = time.monotonic(), random.Random(SEED), 0

        def ends():
            return time.monotonic() - start > 60 * MINUTES if MINUTES else number >= ROWS
        print(f"seed {SEED}", flush=True)
        while not ends():
            for row in covering_rows(FACTORS, draw, is_allowed):
                with self.subTest(row=number, **row):
                    self.check(number, row)
                number += 1
                if ends():
                    break
            else:
                print(f"a whole covering set ends with row {number}", flush=True)
        print(f"seed {SEED}: {number} rows, {len(self.expected)} models and kinds of meshes", flush=True)

    def test_128_experts(self):
        row = {name: values[0] for name, values in FACTORS.items()} | {"experts": 128, "k": 2}
        kind = (1, 1, 4, 1)
        for number, storage in enumerate(("least", "most")):
            self.check(f"128-{number}", row | {"mesh": (kind, 8), "storage": storage, "gather": "min", "poison": "on"})


if __name__ == "__main__":
    run_cases()
