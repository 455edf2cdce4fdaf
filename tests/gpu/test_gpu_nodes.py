#!/usr/bin/env python3
"""Compares the bits of groups of 2 to 8 ranks on GPUs, and of several nodes, with pushes within a node and NCCL between nodes.

One GPU is enough. Tests with several nodes are skipped if the user may not set the name of a host.
"""
import json
import pathlib
import shutil
import signal
import sys
import time
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import gpu_ranks
from program import ROOT, TESSERA, bits, metrics, scratch, write_tokens
from summary import run_cases

if gpu_ranks.GPUS < 1:
    print("skipped: no GPU that the program can use")
    sys.exit(77)

STEPS = 6
RECORDED = 3  # steps before the first graph: two recorded steps and one that is enqueued
NAMED = unittest.skipUnless(gpu_ranks.hosts_can_be_named(), "the name of a host cannot be set: unshare --uts is not allowed")


class Nodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-nodes")
        cls.flags = ["--data", write_tokens(cls.folder / "tokens", 131), "--global-batch", 24,
                     "--seq-len", 64, "--seed", 7, "--dtype", "bf16", "--deterministic", "on"]

    def arguments(self, name, mesh, model="llama-tiny-odd"):
        tp, gtp, dp = mesh
        return ["--model", model, *self.flags, "--tp", tp, "--gtp", gtp, "--dp", dp, "--out", self.folder / name]

    def train(self, name, mesh, *flags, nodes=0, steps=STEPS, model="llama-tiny-odd"):
        """Trains, and returns the bits and the summary of the run."""
        tp, gtp, dp = mesh
        gpu_ranks.train(tp * gtp * dp, *self.arguments(name, mesh, model), "--steps", steps, *flags, nodes=nodes)
        return bits(self.folder / name), json.loads((self.folder / name / "summary.json").read_text())

    def check(self, mesh, alone, *flags, nodes=0, steps=STEPS, model="llama-tiny-odd"):
        """Compares the mesh with the mesh `alone`: as it is, with delays and with a graph."""
        name = "-".join(map(str, [model, *mesh, nodes, len(flags)]))
        expected, _ = self.train(f"{name}-alone", alone, *flags, steps=steps, model=model)
        for kind, more in (("steps", ["--debug-delays", 3]), ("graph", ["--cuda-graph", "on", "--debug-poison", "on"])):
            got, summary = self.train(f"{name}-{kind}", mesh, *flags, *more, nodes=nodes, steps=steps, model=model)
            self.assertEqual(expected, got, kind)
            self.assertEqual("nccl" if nodes else "push", summary["transport"])
            self.assertEqual(steps - RECORDED if kind == "graph" else None, summary.get("graph_steps"))

    def test_gtp_degrees(self):
        for gtp, steps in ((3, STEPS), (4, 20), (8, STEPS)):
            self.check((1, gtp, 1), (1, 1, 1), steps=steps)

    def test_gtp_beside_tp_and_dp(self):
        self.check((2, 2, 1), (2, 1, 1))
        self.check((1, 2, 2), (1, 1, 2))

    def test_other_architectures(self):
        """Tests a model with biases of q, k and v, and a model with norms of every head."""
        for model in ("qwen2-tiny-odd", "qwen3-tiny-odd"):
            self.check((2, 2, 1), (2, 1, 1), model=model)

    def even_model(self):
        """Writes a model with even sizes, which 4-bit numbers need. Returns the path."""
        model = json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text())
        model |= {"hidden_size": 72, "intermediate_size": 332, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12}
        path = self.folder / "even.json"
        path.write_text(json.dumps(model))
        return path

    def check_formats(self, name, *flags):
        """Checks that one rank, two ranks, and three ranks with a graph give the same bits."""
        even = self.even_model()
        expected, _ = self.train(f"{name}-alone", (1, 1, 1), *flags, model=even)
        self.assertEqual(expected, self.train(f"{name}-steps", (1, 2, 1), *flags, model=even)[0], name)
        graph = self.train(f"{name}-graph", (1, 3, 1), *flags, "--cuda-graph", "on", "--debug-poison", "on", model=even)
        self.assertEqual(expected, graph[0], name)
        self.assertEqual(STEPS - RECORDED, graph[1]["graph_steps"])

    def test_number_formats(self):
        """Tests a format with a message of amaxes (nvfp4) and a format without one."""
        for wire in ("nvfp4", "fp8_block"):
            self.check_formats(wire, "--wire-format", wire)

    def test_products_in_number_formats(self):
        """Tests products that read the stored weights or their decoded values, and products that quantize the weights again."""
        for product, wire, scaling in (("fp8", "fp8", "delayed"), ("fp8", "nvfp4", "current"), ("fp8_block", "fp8_block", None),
                                       ("nvfp4", "nvfp4", None), ("mxfp8", "mxfp8", None)):
            more = ["--fp8-scaling", scaling] if scaling else []
            self.check_formats(f"{product}-{wire}", "--gemm-format", product, "--wire-format", wire, *more)

    def check_suppressed(self, name, *flags, injections=("3", "4", "3,4", "1,4:2,6"), meshes=((1, 1, 1), (1, 3, 1)), **options):
        """Checks suppressed steps with and without a graph. On GPUs, the next step has already begun when the host reads that a
        step was suppressed. Ranks that share a GPU are slow, so they run only the last injection."""
        expected, _ = self.train(f"{name}-without", meshes[0], *flags, **options)
        for mesh in meshes:
            for graph in ("off", "on"):
                for injected in injections if mesh == meshes[0] else injections[-1:]:
                    case = f"{name}-{'-'.join(map(str, mesh))}-{graph}-{injected.replace(':', 'x').replace(',', '-')}"
                    got, summary = self.train(case, mesh, *flags, "--cuda-graph", graph, "--debug-suppress", injected, **options)
                    self.assertEqual(expected, got, case)
                    times = {int(step): int(count or 1) for step, _, count in
                             (entry.partition(":") for entry in injected.split(","))}
                    lines = metrics(self.folder / case)
                    self.assertEqual(times, {line["step"]: line["suppressed"] for line in lines if "suppressed" in line}, case)
                    self.assertEqual({"debug_suppress": sum(times.values())}, summary["suppressed_by"], case)
                    self.assertEqual(0, summary["skipped_steps"], case)
                    if not any(step in (1, STEPS) for step in times):
                        self.assertEqual(sum(times.values()), summary["discarded_steps"], case)
                    if graph == "on":
                        self.assertGreaterEqual(summary["graph_steps"], STEPS - RECORDED, case)

    def test_suppressed_steps_are_repeated(self):
        self.check_suppressed("suppressed")

    def test_suppressed_steps_are_repeated_over_replicas(self):
        for zero in ("on", "off"):
            self.check_suppressed(f"suppressed-zero-{zero}", "--zero", zero, injections=("3,4",), meshes=((1, 1, 2), (1, 3, 2)))

    def test_suppressed_steps_do_not_change_the_history_of_scales(self):
        """Planes are cast again from unchanged masters, and the amaxes of a suppressed step are discarded."""
        self.check_suppressed("suppressed-fp8", "--gemm-format", "fp8", "--wire-format", "fp8", "--fp8-history", 2,
                              injections=("1:2,3,4", "5"), model=self.even_model())

    def losses(self, name, gtp, *flags):
        """Returns the losses of three steps. --lr 0 keeps the weights, because backward may differ without --deterministic."""
        out = self.folder / f"{name}-{gtp}"
        gpu_ranks.train(gtp, "--gtp", gtp, "--seed", 7, "--dtype", "bf16", "--lr", 0, "--steps", 3, "--out", out, *flags)
        shutil.rmtree(out / "checkpoints")
        return [line["loss"] for line in metrics(out)]

    def test_the_forward_pass_has_the_bits_of_one_rank_without_deterministic(self):
        """Tests each attention kernel that is selected without --deterministic."""
        layer = json.loads((ROOT / "configs" / "llama3-8b" / "config.json").read_text())
        layer |= {"num_hidden_layers": 1, "vocab_size": 16384}
        (self.folder / "layer.json").write_text(json.dumps(layer))
        data = ["--data", write_tokens(self.folder / "more-tokens", 131, documents=600)]
        small = [*data, "--global-batch", 24, "--seq-len", 64]
        cases = {"products": ["--model", "llama-tiny-odd", *small],
                 "cudnn": ["--model", "llama-demo", *small],
                 "flash": ["--model", "llama-demo", *small, "--mask-documents", "on"],
                 "layer": ["--model", self.folder / "layer.json", *data, "--global-batch", 8, "--seq-len", 1000]}
        for name, flags in cases.items():
            losses = {gtp: self.losses(name, gtp, *flags) for gtp in (1, 2, 4)}
            self.assertEqual({gtp: losses[1] for gtp in losses}, losses, name)
            self.assertEqual(3, len(set(losses[1])), name)

    def check_unit_tests(self, ranks, names):
        program = pathlib.Path(TESSERA).parents[1] / "tests" / "test_comm_nccl"
        codes, errors = gpu_ranks.Ranks(ranks, f"--gtest_filter={names}", program=program).finish(300)
        self.assertEqual([0] * ranks, codes, "".join(errors)[-4000:])

    def test_pushed_planes_and_departed_steps(self):
        for ranks in (2, 3):
            self.check_unit_tests(ranks, "PlanePushes.*:DepartedStep.*")

    def test_two_domains(self):
        self.check_unit_tests(4, "TwoDomains.*")

    @NAMED
    def test_two_nodes(self):
        self.check((1, 4, 1), (1, 1, 1), nodes=2)
        self.check((1, 3, 1), (1, 1, 1), nodes=2)  # a node with two ranks and a node with one
        self.check((2, 2, 1), (2, 1, 1), nodes=2)  # every weight is transferred between nodes

    @NAMED
    def test_hierarchical_sums(self):
        self.check((1, 4, 1), (1, 2, 1), "--reduce-order", "hierarchical", "--ranks-per-node", 2, nodes=2)

    @NAMED
    def test_a_dead_rank_ends_ranks_on_other_nodes(self):
        for victim in (3, 0):  # the last rank, and the rank that runs the store
            self.check_dead_rank(f"dead-{victim}", victim)

    def has_steps(self, metrics):
        return metrics.exists() and metrics.read_text().count("\n") >= 5

    def check_dead_rank(self, name, victim):
        limit, ranks, begin = 10, 4, time.monotonic()
        programs = gpu_ranks.Ranks(ranks, "train", "--backend", "nccl", *self.arguments(name, (1, ranks, 1)), "--steps", 10**6,
                                   "--timeout-s", limit, nodes=2)
        lines = self.folder / name / "metrics.jsonl"
        while programs.all_run() and time.monotonic() - begin < 120 and not self.has_steps(lines):
            time.sleep(0.2)
        programs.programs[victim].kill()
        begin = time.monotonic()
        codes, errors = programs.finish(timeout=60)
        self.assertLess(time.monotonic() - begin, limit + 10)
        self.assertEqual([-signal.SIGKILL if rank == victim else 1 for rank in range(ranks)], codes, errors)
        self.assertTrue(self.has_steps(lines))
        for rank, text in enumerate(errors):
            said = [line[:15] for line in text.splitlines() if line.startswith("tessera:")]
            self.assertEqual([] if rank == victim else [f"tessera: rank {rank}"], said, text)


if __name__ == "__main__":
    run_cases()
