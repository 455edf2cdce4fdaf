#!/usr/bin/env python3
"""`--trace-step N` writes a timeline for Perfetto that contains all received bytes, and it does not change the result."""
import decimal
import json
import unittest

from program import bits, gpus, metrics, run, scratch, tessera, write_tokens
from summary import run_cases

GPUS = gpus()
STEP = 4  # the first scheduled step comes before it, also on GPUs, so its prefetched gathers were issued in the previous step
GATHERED, REDUCED = {"gather", "gather over compute", "publish"}, {"reduce", "reduce over compute", "replicas"}


def is_gathered(span):
    """Returns whether the span gathers weights. Category 'program' contains exchanged rows of an embedding, and pieces of activations."""
    is_row = span["cat"] == "program" and bool(span["args"].get("weights")) and " piece " not in span["name"]
    return span["cat"] in GATHERED or is_row


def nanoseconds(microseconds):
    return int(decimal.Decimal(str(microseconds)) * 1000)


class TraceStep(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("trace-step")
        cls.flags = ["--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--global-batch", 16,
                     "--seq-len", 32, "--seed", 7, "--steps", 5]

    def train(self, name, *flags):
        tessera("train", *self.flags, "--out", self.folder / name, *flags)
        return self.folder / name

    def check_mesh(self, *mesh):
        plain = self.train("-".join(["plain", *mesh]), *mesh)
        traced = self.train("-".join(["traced", *mesh]), *mesh, "--trace-step", STEP)
        self.assertEqual(bits(plain), bits(traced))
        self.assertEqual([], list(plain.glob("trace-step-*")))
        self.assertEqual([f"trace-step-{STEP}.json"], [path.name for path in traced.glob("trace-step-*")])
        events = json.loads((traced / f"trace-step-{STEP}.json").read_text())["traceEvents"]
        ranks = json.loads((traced / "config.json").read_text())["config"]["ranks"]
        rows = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
        begins = {event["pid"]: event["ts"] for event in events if event["ph"] == "i"}
        spans = [event for event in events if event["ph"] == "X"]
        self.assertEqual(set(range(ranks)), set(begins))
        self.assertLessEqual({(span["pid"], span["tid"]) for span in spans}, rows)
        self.assertEqual(len(rows), len({tid for _, tid in rows}))
        self.assertEqual(0, min(span["ts"] for span in spans))
        self.check_order(spans)
        line = metrics(traced)[STEP - 1]
        self.assertEqual(line["gathered_bytes"], sum(span["args"]["bytes"] for span in spans if is_gathered(span)))
        self.assertEqual(line["reduced_bytes"], sum(span["args"]["bytes"] for span in spans if span["cat"] in REDUCED))
        for span in spans:
            if span["cat"] in GATHERED | REDUCED:
                self.assertIn(span["args"]["weights"][0], span["name"])

    def check_order(self, spans):
        """Checks that spans of a lane do not overlap in nanoseconds, because Perfetto drops overlapping spans."""
        ends = {}
        for span in sorted(spans, key=lambda span: (span["ts"], span["dur"])):
            row, begin, duration = span["tid"], nanoseconds(span["ts"]), nanoseconds(span["dur"])
            self.assertLessEqual(ends.get(row, 0), begin, span)
            ends[row] = begin + duration

    def test_replicas(self):
        self.check_mesh("--gtp", "2", "--dp", "2")

    def test_tensor_parallel(self):
        self.check_mesh("--tp", "2", "--gtp", "2", "--gather-budget", "min")

    @unittest.skipIf(GPUS < 2, "fewer than 2 GPUs")
    def test_on_gpus(self):
        for mesh in ("--gtp", "--tp"):
            self.check_mesh("--backend", "nccl", "--ranks", "2", mesh, "2", "--dtype", "bf16", "--deterministic", "on")

    def test_a_step_that_is_not_trained_is_refused(self):
        for steps, flags in ((6, []), (2, ["--resume", self.train("half", "--gtp", 2)])):
            result = run("train", *self.flags, "--out", self.folder / "refused", "--trace-step", steps, *flags)
            self.assertEqual(2, result.returncode, result.stderr)
            self.assertIn(f"--trace-step: got {steps}", result.stderr)


if __name__ == "__main__":
    run_cases()
