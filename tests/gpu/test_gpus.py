#!/usr/bin/env python3
"""Tests the program on GPUs, one process for each GPU: the bits of every layout, calls that a step must not make, comparison with
CPUs, and a dead rank.

$TESSERA is a program that was built with CUDA. The tests are skipped with fewer than two GPUs.
"""
import collections
import itertools
import json
import operator
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import (ENVIRONMENT, ROOT, TESSERA, WITHOUT_SEGMENTS, bits, command, gpus, metrics, scratch, tessera,
                     write_tokens)
from summary import run_cases

STEPS = 20
RECORDED = 3  # steps before the first graph: two recorded steps, of which the second is planned, and one that is enqueued
LIKE = {"loss": 2**-12, "grad_norm": 2**-6}  # relative bounds of GPUs and CPUs in bf16, which add in different orders
WAITS = 6  # waits of the host for the previous step: its end (two calls), the agreement of all ranks (two), loss, traffic
DEMO = ROOT / "data" / "demo" / "train"
COUNTER = pathlib.Path(TESSERA).parents[1] / "tests" / "libcount_cuda_calls.so"


GPUS = gpus()
if GPUS < 2:
    print(f"skipped: the program can use {GPUS} GPUs, expected 2 or more")
    sys.exit(77)


class Gpus(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpus")
        cls.flags = ["--model", "llama-tiny-odd", "--data", write_tokens(cls.folder / "tokens", 131), "--global-batch", 24,
                     "--seq-len", 64, "--seed", 7, "--dtype", "bf16"]

    def train(self, name, ranks, *flags, steps=STEPS, backend="nccl", text=None):
        """Trains the odd model, or the model and data of the flags in `text`. Returns the folder of the run."""
        out = self.folder / name
        tessera("train", *(text or self.flags), "--backend", backend, "--ranks", ranks, "--steps", steps, "--out", out, *flags)
        return out

    def check_bits(self, ranks):
        """Compares every layout and transport on `ranks` GPUs with one GPU."""
        deterministic = ["--deterministic", "on"]
        expected = bits(self.train(f"one-{ranks}", 1, *deterministic))
        poisoned = ["--debug-poison", "on", "--gather-budget", "min"]
        nccl = ["--pushes", "off"]
        graph = ["--cuda-graph", "on"]
        cases = {"pushes": [], "gathered": ["--embedding", "gather"], "nccl": nccl,
                 "poisoned": [*poisoned, "--reduce-budget", "min"], "delayed": ["--debug-delays", 3], "graph": graph,
                 "graph-nccl": [*graph, *nccl, "--embedding", "gather"], "graph-poisoned": [*graph, *poisoned]}
        for name, flags in cases.items():
            out = self.train(f"{name}-{ranks}", ranks, *deterministic, "--gtp", ranks, *flags)
            self.assertEqual(expected, bits(out), name)
            summary = json.loads((out / "summary.json").read_text())
            self.assertEqual(STEPS - RECORDED if "--cuda-graph" in flags else None, summary.get("graph_steps"), name)

    def test_two_gpus_give_the_bits_of_one_gpu(self):
        self.check_bits(2)

    @unittest.skipIf(GPUS < 4, "fewer than 4 GPUs")
    def test_four_gpus_give_the_bits_of_one_gpu(self):
        self.check_bits(4)

    def test_cpus_have_close_losses_and_resume_gpu_checkpoints(self):
        self.check_cpus("odd", self.flags)

    @unittest.skipUnless(DEMO.with_suffix(".bin").exists(), "no data/demo: ./run data prepares it")
    def test_cpus_have_close_losses_on_the_demo(self):
        self.check_cpus("demo", ["--model", "llama-demo", "--data", DEMO, "--global-batch", 4, "--seq-len", 128, "--seed", 7,
                                 "--dtype", "bf16"])

    def check_cpus(self, name, text):
        """Checks that GPUs and CPUs have close losses, also after either resumes from a checkpoint of the other with another
        layout."""
        further, runs = STEPS + 2, {}
        for on in ("nccl", "local"):
            flags = ["--gtp", 2, "--save-every", STEPS]
            runs[on] = self.train(f"{name}-{on}", 2, *flags, text=text, backend=on, steps=further)
        self.check_like(metrics(runs["nccl"]), metrics(runs["local"]), further)
        for (source, run), on in itertools.product(runs.items(), runs):
            out = self.folder / f"{name}-{source}-{on}"
            tessera("train", "--resume", run / "checkpoints" / f"step-{STEPS:08}", "--backend", on, "--ranks", 2, "--tp", 2,
                    "--gtp", 1, "--steps", further, "--out", out)
            self.check_like(metrics(out), metrics(run)[STEPS:], further)

    def check_like(self, ours, theirs, last):
        for one, other in zip(ours, theirs, strict=True):
            for value, apart in LIKE.items():
                text = f"{value} of step {one['step']}"
                self.assertAlmostEqual(one[value], other[value], delta=apart * other[value], msg=text)
        self.assertEqual(last, ours[-1]["step"])

    def test_graphs_on_other_meshes(self):
        """Tests weights whose compute parts overlap over tp, and states that are sharded over replicas."""
        for mesh in (["--tp", 2], ["--tp", 2, "--sequence-parallel", "on"], ["--dp", 2]):
            flags = [*mesh, "--deterministic", "on"]
            name = "-".join(map(str, mesh))
            graph = self.train(f"graph{name}", 2, *flags, "--cuda-graph", "on", "--debug-poison", "on")
            self.assertEqual(bits(self.train(f"steps{name}", 2, *flags)), bits(graph), name)
            # Without gathered weights there is no prefetch, so no step is enqueued between the recorded steps and the graph.
            enqueued = RECORDED if "--tp" in mesh else RECORDED - 1
            self.assertEqual(STEPS - enqueued, json.loads((graph / "summary.json").read_text())["graph_steps"], name)

    def test_evaluations_between_graph_launches(self):
        flags = ["--gtp", 2, "--deterministic", "on", "--valid", self.flags[3], "--eval-every", 4]
        expected = self.train("evaluated", 2, *flags)
        graph = self.train("evaluated-graph", 2, *flags, "--cuda-graph", "on")
        self.assertEqual(bits(expected), bits(graph))
        self.assertEqual([line.get("valid_loss") for line in metrics(expected)],
                         [line.get("valid_loss") for line in metrics(graph)])
        # The step after each evaluation except the last is enqueued without a graph.
        self.assertEqual(STEPS - RECORDED - 4, json.loads((graph / "summary.json").read_text())["graph_steps"])

    def counts(self, steps, *flags):
        """Returns the counts of calls that allocate or wait, by rank, and the number of waits of the host (`host_waits`)."""
        prefix = self.folder / "-".join(["counts", *map(str, [steps, *flags])])
        out = prefix.with_suffix(".run")
        environment = {**WITHOUT_SEGMENTS, "LD_PRELOAD": str(COUNTER), "TESSERA_COUNTS": str(prefix)}
        arguments = ["train", *self.flags, "--backend", "nccl", "--ranks", 2, "--steps", steps, "--out", out, *flags]
        result = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, env=environment, timeout=300)
        self.assertEqual(0, result.returncode, result.stderr)
        ranks = [dict(line.split() for line in path.read_text().splitlines())
                 for path in self.folder.glob(prefix.name + ".[0-9]*")]
        return (collections.Counter(tuple(sorted(rank.items())) for rank in ranks),
                json.loads((out / "summary.json").read_text())["host_waits"])

    def test_a_step_allocates_no_memory_and_does_not_synchronize(self):
        fp8 = ["--wire-format", "fp8", "--gemm-format", "fp8"]
        unpacked = ["--wire-format", "mxfp8", "--gemm-format", "fp8", "--fp8-scaling", "current"]
        decoded = ["--wire-format", "nvfp4", "--gemm-format", "nvfp4"]
        meshes = (["--gtp", 2], ["--tp", 2], ["--gtp", 2, *fp8], ["--gtp", 2, *unpacked], ["--gtp", 2, *decoded])
        for mesh, graph in itertools.product(meshes, ([], ["--cuda-graph", "on"])):
            flags = [*mesh, *graph]
            (few, waits_of_few), (many, waits_of_many) = self.counts(24, *flags), self.counts(64, *flags)  # pools are full
            self.assertGreater(sum(int(count) for rank in few for _, count in rank), 0, "no call was counted")
            self.assertEqual(few, many, flags)
            self.assertEqual(40 * WAITS, waits_of_many - waits_of_few, flags)

    def test_bench_step_reports_the_transport(self):
        step = ["bench", "step", "--model", "llama-tiny-odd", "--seq-len", 64, "--gtp", 2, "--dtype", "bf16", "--steps", 4]
        profile = self.folder / "profile.json"
        for flags, moved in ((["--profile", profile], ("push", False)), (["--pushes", "off"], ("nccl", False)),
                             (["--cuda-graph", "on", "--deterministic", "on"], ("push", True))):
            report = json.loads(tessera(*step, "--json", *flags).splitlines()[-1])
            self.assertEqual(moved, (report["transport"], report["cuda_graph"]))
            self.assertLessEqual(report["p10_ms"], report["median_ms"])
            self.assertLessEqual(report["median_ms"], report["p90_ms"])
            for value in ("p10_ms", "peak_memory_bytes", "limit_ratio", "mfu", "host_ms", "tokens_per_second_per_gpu"):
                self.assertGreater(report[value], 0, value)
        names = {event["name"] for event in json.loads(profile.read_text())["traceEvents"] if event["ph"] == "X"}
        self.assertTrue(any("update_shards" in name for name in names), names)

    def test_pieces_of_tokens_are_pushed(self):
        """Copy engines move the tokens that travel over tp beside products. NCCL's kernels move only small unequal parts."""
        profile = self.folder / "pieces.json"
        report = json.loads(tessera("bench", "step", "--model", "llama-tiny-odd", "--seq-len", 64, "--tp", 2, "--sequence-parallel", "on",
                                    "--tp-overlap", "on", "--tp-chunks", 2, "--dtype", "bf16", "--steps", 4, "--json",
                                    "--profile", profile).splitlines()[-1])
        self.assertEqual(("push", 0), (report["tp_transport"], report["tp_fallbacks"]))
        names = [event["name"] for event in json.loads(profile.read_text())["traceEvents"] if event["ph"] == "X"]
        self.assertLess(len([name for name in names if "SendRecv" in name]), report["tp_pieces"])

    def test_a_dead_rank_ends_the_others_within_the_time_limit(self):
        self.check_dead_rank("dead", "--gtp", 2)

    def test_a_dead_rank_ends_a_graph(self):
        for mesh in ("--gtp", "--tp"):  # weights are pushed; pieces of tokens are pushed
            self.check_dead_rank(f"dead-graph{mesh}", mesh, 2, "--cuda-graph", "on")

    def check_dead_rank(self, name, *flags):
        limit, busy = 6, work_on_gpus()
        arguments = ["train", *self.flags, "--backend", "nccl", "--ranks", 2, "--steps", 10**6, "--timeout-s",
                     limit, "--out", self.folder / name, *flags]
        with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=ENVIRONMENT) as program:
            try:
                self.wait_for_steps(program, self.folder / name / "metrics.jsonl")
                children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
                os.kill(int(children[-1]), signal.SIGKILL)
                begin = time.monotonic()
                errors = program.communicate(timeout=60)[1]
                took = time.monotonic() - begin
            finally:
                program.kill()  # the ranks end with the program
        self.assertEqual(128 + signal.SIGKILL, program.returncode)
        lines = [line for line in errors.splitlines() if line.startswith("tessera:")]
        self.assertEqual(4, len(lines), errors)
        self.assertIn("rank 1 has ended during the run", lines[0])
        self.assertIn("to continue from step", lines[1])
        self.assertIn("ended by signal 9", "\n".join(lines))
        self.assertRegex("\n".join(lines), r"rank 0: .*(time limit|remote process exited).*; rank 1: no answer")
        # The program kills ranks that have not ended 10 s after the limit.
        self.assertLess(took, limit + 15, errors)
        while time.monotonic() - begin < limit + 20 and any(map(operator.gt, work_on_gpus(), busy)):
            time.sleep(0.5)
        self.assertFalse(any(map(operator.gt, work_on_gpus(), busy)), f"{work_on_gpus()} MiB, before {busy}")

    def wait_for_steps(self, program, lines):
        end = time.monotonic() + 120
        while not lines.exists() or lines.read_text().count("\n") < 5:
            self.assertIsNone(program.poll())
            self.assertLess(time.monotonic(), end, "fewer than five steps")
            time.sleep(0.2)


def work_on_gpus():
    """Returns the used memory in MiB of each GPU that the program may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    result = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
                             *(["--id", visible] if visible else [])], capture_output=True, text=True, check=True)
    return [int(line) for line in result.stdout.split()]


if __name__ == "__main__":
    run_cases()
