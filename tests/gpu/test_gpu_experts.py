#!/usr/bin/env python3
"""Models with experts on GPUs: the bits of meshes with equal tp, etp, ep and dp, with and without a graph; CPUs; and the waits of a
step.

One GPU is enough, because ranks may share it. A mesh is (tp, gtp, dp, etp, ep, egtp).
"""
import collections
import json
import pathlib
import random
import struct
import subprocess
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import gpu_ranks
from program import ROOT, TESSERA, WITHOUT_SEGMENTS, bits, command, metrics, run, scratch, tessera, write_documents, write_tokens
from stored_tensors import logical_tensors
from summary import run_cases

if gpu_ranks.GPUS < 1:
    print("skipped: no GPU that the program can use")
    sys.exit(77)

STEPS = 6
RECORDED = 3  # steps before the first graph: two recorded steps and one that is enqueued
ODD, QWEN, DOTS, DENSE = "mixtral-tiny-odd", "qwen3-moe-tiny-odd", "dots1-tiny-odd", "llama-tiny-odd"
RATE = 2 ** -10  # a power of two, so that sums of a few updates are exact
BIASES = ("--model", DOTS, "--router-z-loss", 0, "--expert-bias-rate", RATE)
BALANCED = (*BIASES, "--expert-capacity", 1.1)
COUNTER = pathlib.Path(TESSERA).parents[1] / "tests" / "libcount_cuda_calls.so"
GRAPH = ("--cuda-graph", "on")
POISON = ("--debug-poison", "on", "--gather-budget", "min", "--reduce-budget", "min")
# Relative bounds of the difference to CPUs, which add products in another order. In bf16 a few tokens near equal scores choose
# other experts.
LIKE = {"fp32": {"loss": 1e-4, "grad_norm": 1e-3, "aux_loss": 1e-3}, "bf16": {"loss": 4e-3, "grad_norm": 4e-2, "aux_loss": 2e-2}}


class GpuExperts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-experts")
        cls.tokens = write_tokens(cls.folder / "tokens", 131)
        # Sizes that are multiples of 8, so that products read their operands directly.
        whole = json.loads((ROOT / "configs" / ODD / "config.json").read_text()) | {
            "hidden_size": 128, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
        cls.whole = cls.folder / "whole.json"
        cls.whole.write_text(json.dumps(whole))
        dots = json.loads((ROOT / "configs" / DOTS / "config.json").read_text()) | {
            "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 32}
        cls.whole_dots = cls.folder / "whole-dots.json"
        cls.whole_dots.write_text(json.dumps(dots))

    def flags(self, name, mesh, model, steps, *more, dtype="bf16"):
        """Returns the flags of a run. `more` are pairs of a flag and its value; a later value replaces an earlier one."""
        tp, gtp, dp, etp, ep, egtp = mesh
        flags = ["--model", model, "--data", self.tokens, "--global-batch", 12, "--seq-len", 64, "--seed", 7, "--dtype", dtype,
                 "--router-z-loss", 1e-3, "--lr", 2e-3, "--deterministic", "on", "--expert-counts", 1, "--tp", tp, "--gtp", gtp,
                 "--dp", dp, "--etp", etp, "--ep", ep, "--egtp", egtp, "--steps", steps, "--out", self.folder / name]
        flags += [*(["--sequence-parallel", "on"] if tp > 1 else []), *more]
        return [word for pair in dict(zip(flags[::2], flags[1::2], strict=True)).items() for word in pair]

    def train(self, name, mesh, *flags, model=ODD, steps=STEPS, dtype="bf16", variables=None):
        """Trains on GPUs. Returns the bits of the run and the values of its routers."""
        tp, gtp, dp = mesh[:3]
        gpu_ranks.train(tp * gtp * dp, *self.flags(name, mesh, model, steps, *flags, dtype=dtype), variables=variables)
        return bits(self.folder / name), self.routers(name)

    def routers(self, name):
        return [(line["aux_loss"], line["z_loss"], line["expert_counts"], line.get("expert_dropped")) for line in metrics(self.folder / name)]

    def summary(self, name):
        return json.loads((self.folder / name / "summary.json").read_text())

    def check(self, name, meshes, model=ODD, dtype="bf16", steps=STEPS):
        """`meshes`: (mesh, flags of this run). All runs have the bits of the first."""
        expected = None
        for number, (mesh, flags) in enumerate(meshes):
            found = self.train(f"{name}-{number}", mesh, *flags, model=model, dtype=dtype, steps=steps)
            expected = expected or found
            self.assertEqual(expected[1], found[1], (mesh, flags))
            self.assertEqual(expected[0], found[0], (mesh, flags))
            if "--cuda-graph" in flags:
                # Steps that are repeated with more room for rows are counted again.
                self.assertGreaterEqual(self.summary(f"{name}-{number}")["graph_steps"], steps - RECORDED, (mesh, flags))

    def test_gtp_and_egtp(self):
        one = (1, 1, 1, 1, 1, 1)
        for model in (ODD, self.whole):
            name = "odd" if model == ODD else "whole"
            self.check(f"egtp-{name}", [(one, ()), (one, (*GRAPH, "--debug-poison", "on")), ((1, 4, 1, 1, 1, 1), ()),
                                        ((1, 4, 1, 1, 1, 4), (*GRAPH, *POISON)), ((1, 3, 1, 1, 1, 3), ("--debug-delays", 3))], model)

    def test_ep(self):
        self.check("ep", [((1, 2, 1, 1, 2, 1), ()), ((1, 4, 1, 1, 2, 1), ("--recompute", "full")),
                          ((1, 4, 1, 1, 2, 2), (*GRAPH, *POISON, "--recompute", "selective")), ((1, 4, 1, 1, 2, 2), ("--pushes", "off"))])

    def test_more_owners_than_experts_divide(self):
        """7 experts on 4 owners; the other model has a dense layer."""
        self.check("ep4", [((1, 4, 1, 1, 4, 1), ()), ((1, 4, 1, 1, 4, 1), GRAPH)], QWEN)

    def test_tp_and_etp(self):
        self.check("tp", [((2, 1, 1, 1, 2, 1), ()), ((2, 2, 1, 1, 2, 2), GRAPH)], self.whole)
        self.check("etp", [((2, 1, 1, 2, 1, 1), ()), ((2, 2, 1, 2, 1, 2), GRAPH)], self.whole)

    def test_number_formats(self):
        """Experts are stored and sent in number formats. Storage, transport, graphs and poison change no bit. Losses are close to those
        of CPUs with the same formats, and the format reaches the experts."""
        for wire, backward, model in (("nvfp4", "mxfp8", self.whole), ("fp8", "fp8", ODD), ("mxfp8", "fp8_block", ODD)):
            formats, mesh = ("--wire-format", wire, "--wire-format-backward", backward), (1, 2, 1, 1, 1, 1)
            self.check(f"formats-{wire}", [(mesh, formats), ((1, 2, 1, 1, 1, 2), (*formats, *GRAPH, *POISON)),
                                           ((1, 2, 1, 1, 1, 2), (*formats, "--pushes", "off"))], model)
            self.assertLess(0, self.summary(f"formats-{wire}-1")["gathered_bytes"][wire])
            tessera("train", *self.flags(f"formats-cpu-{wire}", mesh, model, STEPS, *formats), "--backend", "local")
            for ours, theirs in zip(metrics(self.folder / f"formats-{wire}-0"), metrics(self.folder / f"formats-cpu-{wire}"), strict=True):
                for key, bound in LIKE["bf16"].items():
                    self.assertAlmostEqual(ours[key], theirs[key], delta=bound * theirs[key], msg=(wire, ours["step"], key))
        formats = ("--wire-format", "nvfp4", "--zero", "on")
        self.check("formats-owners", [((1, 2, 2, 1, 2, 1), formats), ((1, 2, 2, 1, 2, 1), (*formats, *GRAPH))], self.whole)

    def kernels(self, experts, wire):
        """Returns the number of kernels by name in two steps of a model with this number of experts."""
        model, profile = self.folder / f"experts-{experts}.json", self.folder / f"kernels-{experts}-{wire}.json"
        model.write_text(json.dumps(json.loads(self.whole.read_text()) | {"num_local_experts": experts}))
        tessera("bench", "step", "--backend", "nccl", "--model", model, "--seq-len", 64, "--dtype", "bf16", "--wire-format", wire,
                "--steps", 2, "--profile", profile)
        return collections.Counter(event["name"] for event in json.loads(profile.read_text())["traceEvents"] if event.get("cat") == "kernel")

    def test_launches_do_not_grow_with_the_number_of_experts(self):
        """Casts, unpacking and updates of 128 experts need at most as many kernels as those of 8. Larger weights have fewer buckets."""
        for wire in ("nvfp4", "fp8"):
            few, many = self.kernels(8, wire), self.kernels(128, wire)
            self.assertGreater(few.total(), 0)
            self.assertLessEqual(many.total(), few.total(), {name: (few[name], many[name]) for name in few | many if few[name] != many[name]})

    def check_products(self, product, model, first, *others, choice=()):
        """Storage, transport, graphs, poison and the wire change no bit. Losses are close to those of CPUs with the same formats, where
        the products are defined, and the kernels are those that the summary names."""
        name = "-".join(("products", product, *choice[1::2]))
        formats = ("--gemm-format", product, "--wire-format", product, *choice)
        plain = (*formats, "--wire-rules", "layers.*.experts.*=bf16")
        self.check(name, [(first, formats), (first, (*formats, *GRAPH, *POISON)), *((mesh, formats) for mesh in others), (first, plain)], model)
        kernels = {(each["format"], each["kernel"]) for each in self.summary(f"{name}-0")["products_by_kernel"]}
        if "native" in choice:
            self.assertIn((product, "native"), kernels)
            self.assertNotIn((product, "decoded"), kernels)
        else:
            self.assertIn((product, "decoded"), kernels)
            self.assertEqual(product in ("fp8", "fp8_block"), (product, "native") in kernels, kernels)
        on_cpu = [word for word in formats if word not in ("--gemm-kernels", "native")]
        tessera("train", *self.flags(f"{name}-cpu", first, model, STEPS, *on_cpu), "--backend", "local")
        for ours, theirs in zip(metrics(self.folder / f"{name}-0"), metrics(self.folder / f"{name}-cpu"), strict=True):
            for key, bound in LIKE["bf16"].items():
                self.assertAlmostEqual(ours[key], theirs[key], delta=4 * bound * theirs[key], msg=(name, ours["step"], key))

    def test_products_of_experts_in_nvfp4(self):
        self.check_products("nvfp4", self.whole, (1, 2, 1, 1, 1, 1), (1, 2, 1, 1, 1, 2))

    def test_products_of_experts_in_mxfp8(self):
        self.check_products("mxfp8", ODD, (1, 4, 1, 1, 2, 1), (1, 4, 1, 1, 2, 2))

    def test_products_of_experts_in_fp8_block(self):
        self.check_products("fp8_block", QWEN, (1, 3, 1, 1, 3, 1))

    def test_products_of_experts_in_fp8(self):
        self.check_products("fp8", self.whole, (2, 1, 1, 2, 1, 1), (2, 2, 1, 2, 1, 2))

    def test_products_of_experts_in_fp8_with_current_scaling(self):
        self.check_products("fp8", ODD, (1, 2, 1, 1, 2, 1), (1, 4, 1, 1, 2, 2), choice=("--fp8-scaling", "current", "--fp8-recipe", "e4m3"))

    def test_products_of_experts_as_codes(self):
        """Experts multiply e4m3 codes; weights travel in fp8 or in bf16. Some steps leave an expert without rows."""
        codes = ("--gemm-kernels", "native", "--fp8-recipe", "e4m3")
        self.check_products("fp8", self.whole, (1, 2, 1, 1, 2, 1), (1, 4, 1, 1, 2, 2), choice=codes)
        self.check_products("fp8", self.whole, (2, 1, 1, 2, 1, 1), (2, 2, 1, 2, 1, 2), choice=(*codes, "--fp8-scaling", "current"))

    def test_nvfp4_recipe_of_experts(self):
        """Only experts are multiplied in nvfp4. Each part of the recipe gives the same bits over egtp, with poison and with a graph, is
        close to CPUs, and changes the run."""
        mesh, losses = (1, 2, 1, 1, 2, 1), set()
        for number, part in enumerate((("on", "nearest"), ("off", "stochastic"), ("off", "nearest"))):
            flags = ("--gemm-rules", "layers.*.experts.*=nvfp4", "--nvfp4-hadamard", part[0], "--nvfp4-rounding", part[1])
            name, steps = f"recipe-{number}", RECORDED + 1
            self.check(name, [(mesh, flags), ((1, 4, 1, 1, 2, 2), (*flags, *GRAPH, *POISON))], ODD, steps=steps)
            tessera("train", *self.flags(f"{name}-cpu", mesh, ODD, steps, *flags), "--backend", "local")
            for ours, theirs in zip(metrics(self.folder / f"{name}-0"), metrics(self.folder / f"{name}-cpu"), strict=True):
                for key, bound in LIKE["bf16"].items():
                    self.assertAlmostEqual(ours[key], theirs[key], delta=4 * bound * theirs[key], msg=(part, ours["step"], key))
            losses.add(metrics(self.folder / f"{name}-0")[-1]["loss"])
        self.assertEqual(3, len(losses), "a part does not change the result")

    def test_one_hardware_queue(self):
        """With one hardware queue, work may wait for all work that its host has enqueued before. The orders of all ranks agree, so
        no step stops. Weights, gradients, rows of experts and activations travel, within a graph and outside of it."""
        mesh, one_queue = (2, 2, 1, 1, 2, 2), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        expected = self.train("queues", mesh, model=self.whole)
        for name, flags in (("steps", ()), ("graph", GRAPH), ("graph-small-arenas", (*GRAPH, *POISON))):
            found = self.train(f"one-queue-{name}", mesh, *flags, model=self.whole, variables=one_queue)
            self.assertEqual(expected, found, name)
            summary = self.summary(f"one-queue-{name}")
            self.assertEqual(self.summary("queues")["transport"], summary["transport"], name)
            if flags:
                self.assertGreaterEqual(summary["graph_steps"], STEPS - RECORDED, name)

    def test_replicas(self):
        self.check("dp", [((1, 1, 2, 1, 1, 1), ()), ((1, 2, 2, 1, 1, 2), ("--zero", "off"))])

    def train_with_room(self, name, room, *flags):
        """Trains on four owners of experts, with evaluations. Returns what must not depend on the room, and the repeated steps."""
        bits_and_routers = self.train(name, (1, 4, 1, 1, 4, 1), "--expert-room", room, *flags)
        losses = [line.get("valid_loss") for line in metrics(self.folder / name)]
        return (*bits_and_routers, losses), self.summary(name).get("suppressed_by", {})

    def test_steps_with_too_many_rows_are_repeated(self):
        """The first step, a step with another step behind it, steps of a graph, and evaluations overflow."""
        one = write_documents(self.folder / "one-token", [[3] * 2000])
        for name, data, room in (("tight", self.tokens, 1), ("one-token", one, 1.25)):
            flags = ["--data", data, "--valid", self.tokens, "--eval-every", 2]
            expected, repeats = self.train_with_room(f"{name}-large", 100, *flags)
            self.assertEqual({}, repeats)
            for kind, more in (("steps", ()), ("graph", (*GRAPH, "--debug-poison", "on"))):
                found, repeats = self.train_with_room(f"{name}-{kind}", room, *flags, *more)
                self.assertGreater(repeats.get("expert_room", 0), 0, (name, kind))
                self.assertEqual(expected, found, (name, kind))

    def test_the_summary_describes_the_rows_of_experts(self):
        """A rank has 6 microbatches. In each of two layers, a microbatch has 6 products of experts. Every choice has a row."""
        for name, model, padded in (("odd", ODD, 6 * 2 * 6), ("whole", self.whole, 0)):
            self.train(f"summary-{name}", (1, 2, 1, 1, 2, 1), "--expert-room", 100, model=model)
            summary = self.summary(f"summary-{name}")
            self.assertEqual((2 * 64 * 2, "nccl", padded),
                             tuple(summary[key] for key in ("expert_room_rows", "expert_transport", "padded_products")), name)
            self.assertIn(summary["transport"], ("push", "nccl"))

    def check_biases(self, name):
        """Checks the biases of a run of dots1: steps that are not skipped move them by the counts."""
        expected = [0] * 9
        for line in metrics(self.folder / name):
            counts = line["expert_counts"][0]
            missing = [sum(counts) - len(counts) * count for count in counts]
            if not line.get("skipped", False):
                expected = [bias + RATE * ((other > 0) - (other < 0)) for bias, other in zip(expected, missing, strict=True)]
        dtype, _, data = logical_tensors(self.folder / name)["weight/layers.1.router.bias"]
        self.assertEqual(expected, list(struct.unpack({"fp32": "<9f", "fp64": "<9d"}[dtype], data)), name)
        self.assertGreater(len(set(expected)), 1)

    def check_dots1(self, name, *meshes):
        """Runs a model whose sizes divide by nothing, and one whose products read their operands directly. Biases move, and choices
        are dropped."""
        for model in (DOTS, self.whole_dots):
            case = f"{name}-{'odd' if model == DOTS else 'whole'}"
            self.check(case, [(mesh, (*BALANCED, *flags, "--model", model)) for mesh, flags in meshes])
            self.assertGreater(sum(dropped for *_, dropped in self.routers(f"{case}-0")), 0)
            self.check_biases(f"{case}-0")

    def test_dots1_over_gtp_and_egtp(self):
        one = (1, 1, 1, 1, 1, 1)
        self.check_dots1("dots-egtp", (one, ()), (one, GRAPH), ((1, 4, 1, 1, 1, 4), (*GRAPH, *POISON)),
                         ((1, 3, 1, 1, 1, 3), ("--debug-delays", 3, "--recompute", "full")))

    def test_dots1_over_ep(self):
        self.check_dots1("dots-ep", ((1, 2, 1, 1, 2, 1), ()), ((1, 4, 1, 1, 2, 2), (*GRAPH, *POISON, "--recompute", "selective")),
                         ((1, 4, 1, 1, 2, 1), ("--pushes", "off")))

    def test_dots1_over_tp_and_replicas(self):
        self.check_dots1("dots-tp", ((2, 1, 1, 2, 1, 1), ()), ((2, 2, 1, 2, 1, 2), GRAPH))
        self.check_dots1("dots-dp", ((1, 1, 2, 1, 1, 1), ()), ((1, 2, 2, 1, 1, 2), (*GRAPH, "--zero", "off")))

    def test_dots1_has_the_losses_of_cpus(self):
        """In fp64, choices, dropped choices and biases are equal on every mesh and on CPUs, and losses agree to rounding.

        If a sequence begins with two equal tokens, their weights are equal, and rounding decides which of the two is dropped. In
        this text, neighbours differ."""
        draw, text = random.Random(1), [0]
        while len(text) < 6000:
            text.append((text[-1] + draw.randint(1, 130)) % 131)
        flags = (*BALANCED, "--data", write_documents(self.folder / "neighbours-differ", [text]))
        for number, mesh in enumerate(((1, 1, 1, 1, 1, 1), (1, 4, 1, 1, 4, 1), (2, 1, 1, 1, 2, 1), (1, 2, 2, 1, 1, 2))):
            self.train(f"dots-fp64-{number}", mesh, *flags, dtype="fp64")
        tessera("train", *self.flags("dots-fp64-cpu", (1, 1, 1, 1, 1, 1), DOTS, STEPS, *flags, dtype="fp64"), "--backend", "local")
        for number in range(4):
            self.check_biases(f"dots-fp64-{number}")
            for ours, theirs in zip(metrics(self.folder / f"dots-fp64-{number}"), metrics(self.folder / "dots-fp64-cpu"), strict=True):
                for key in ("expert_counts", "expert_dropped"):
                    self.assertEqual(ours[key], theirs[key], (number, ours["step"], key))
                for key in ("loss", "grad_norm"):
                    self.assertAlmostEqual(ours[key], theirs[key], delta=1e-9 * theirs[key], msg=(number, ours["step"], key))

    def test_dots1_has_losses_close_to_those_of_cpus(self):
        mesh = (1, 2, 1, 1, 2, 1)
        for dtype, bounds in LIKE.items():
            self.train(f"dots-gpu-{dtype}", mesh, *BALANCED, dtype=dtype)
            tessera("train", *self.flags(f"dots-cpu-{dtype}", mesh, DOTS, STEPS, *BALANCED, dtype=dtype), "--backend", "local")
            for ours, theirs in zip(metrics(self.folder / f"dots-gpu-{dtype}"), metrics(self.folder / f"dots-cpu-{dtype}"), strict=True):
                for key in ("loss", "grad_norm"):
                    self.assertAlmostEqual(ours[key], theirs[key], delta=bounds[key] * theirs[key], msg=(dtype, ours["step"], key))

    def test_biases_stay_in_steps_without_an_update(self):
        """After a step with a huge rate, every later step is skipped. Suppressed steps are repeated from the same biases."""
        for name, mesh, more in (("one", (1, 1, 1, 1, 1, 1), ()), ("graph", (1, 2, 1, 1, 2, 1), GRAPH)):
            self.train(f"dots-nan-{name}", mesh, *BALANCED, *more, "--lr", 1e30)
            self.check_biases(f"dots-nan-{name}")
            self.assertTrue(metrics(self.folder / f"dots-nan-{name}")[-1]["skipped"])
        mesh = (1, 2, 1, 1, 2, 1)
        expected = self.train("dots-plain", mesh, *BALANCED)
        for name, more in (("steps", ()), ("graph", GRAPH)):
            found = self.train(f"dots-suppressed-{name}", mesh, *BALANCED, *more, "--debug-suppress", "1,3,5:2")
            self.assertEqual(expected, found, name)
            self.assertEqual({"debug_suppress": 4}, self.summary(f"dots-suppressed-{name}")["suppressed_by"], name)

    def test_dots1_repeats_steps_with_too_many_rows(self):
        expected, repeats = self.train_with_room("dots-large", 100, *BIASES)
        self.assertEqual({}, repeats)
        for name, more in (("steps", ()), ("graph", GRAPH)):
            found, repeats = self.train_with_room(f"dots-{name}", 1, *BIASES, *more)
            self.assertGreater(repeats.get("expert_room", 0), 0, name)
            self.assertEqual(expected, found, name)
            self.check_biases(f"dots-{name}")

    def test_cpus_have_close_losses(self):
        mesh = (1, 2, 1, 1, 2, 1)
        for dtype, bounds in LIKE.items():
            self.train(f"gpu-{dtype}", mesh, dtype=dtype)
            tessera("train", *self.flags(f"cpu-{dtype}", mesh, ODD, STEPS, dtype=dtype), "--backend", "local")
            for ours, theirs in zip(metrics(self.folder / f"gpu-{dtype}"), metrics(self.folder / f"cpu-{dtype}"), strict=True):
                for key, bound in bounds.items():
                    self.assertAlmostEqual(ours[key], theirs[key], delta=bound * theirs[key], msg=(dtype, ours["step"], key))

    def test_fp64_has_the_losses_of_cpus(self):
        """fp64 has room for another order of sums: choices are equal, and all values agree to rounding."""
        for moe_aux in ("layer", "pooled"):
            name, mesh = f"fp64-{moe_aux}", (1, 2, 1, 1, 2, 1)
            self.train(f"gpu-{name}", mesh, "--moe-aux", moe_aux, dtype="fp64")
            tessera("train", *self.flags(f"cpu-{name}", mesh, ODD, STEPS, "--moe-aux", moe_aux, dtype="fp64"), "--backend", "local")
            for ours, theirs in zip(metrics(self.folder / f"gpu-{name}"), metrics(self.folder / f"cpu-{name}"), strict=True):
                self.assertEqual(ours["expert_counts"], theirs["expert_counts"])
                for key in ("loss", "grad_norm", "aux_loss", "z_loss"):
                    self.assertAlmostEqual(ours[key], theirs[key], delta=1e-9 * abs(theirs[key]), msg=(name, ours["step"], key))

    def test_gpu_checkpoints_continue_on_cpus(self):
        self.train("saved", (1, 2, 1, 1, 2, 1), "--schedule-steps", 8, dtype="fp64", steps=4)
        for name, more in (("on-gpu", []), ("on-cpu", ["--gtp", 1, "--ep", 1, "--backend", "local"])):
            line = ["train", "--resume", self.folder / "saved", "--steps", 6, "--out", self.folder / name, *more]
            if more:
                tessera(*line)
            else:
                codes, errors = gpu_ranks.Ranks(2, *line, "--backend", "nccl").finish(300)
                self.assertEqual([0, 0], codes, "".join(errors)[-4000:])
        for ours, theirs in zip(metrics(self.folder / "on-gpu"), metrics(self.folder / "on-cpu"), strict=True):
            self.assertAlmostEqual(ours["loss"], theirs["loss"], delta=1e-9 * theirs["loss"])

    def counts(self, model, steps, graph):
        """Returns the calls of a run on one GPU that allocate or wait, and the waits of the host (`host_waits`)."""
        name = f"counts-{model}-{steps}-{graph}"
        flags = {DENSE: ("--expert-counts", 0, "--router-z-loss", 0), DOTS: BALANCED}.get(model, ())
        line = command("train", *self.flags(name, (1, 1, 1, 1, 1, 1), model, steps, *flags, "--cuda-graph", graph), "--backend", "nccl")
        environment = {**WITHOUT_SEGMENTS, "LD_PRELOAD": str(COUNTER), "TESSERA_COUNTS": str(self.folder / name)}
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment, timeout=300)
        self.assertEqual(0, done.returncode, done.stderr)
        files = [path.read_text().splitlines() for path in self.folder.glob(f"{name}.[0-9]*")]
        calls = collections.Counter()
        for word, count in (text.split() for lines in files for text in lines):
            calls[word] += int(count)
        return calls, self.summary(name)["host_waits"]

    def test_a_step_allocates_no_memory_and_waits_as_a_dense_step(self):
        self.assertTrue(COUNTER.exists(), f"{COUNTER}: build the target count_cuda_calls")
        for graph in ("off", "on"):
            waits = []
            for model in (DENSE, ODD, DOTS):
                (few, waits_of_few), (many, waits_of_many) = (self.counts(model, steps, graph) for steps in (16, 32))
                self.assertGreater(sum(few.values()), 0, "no call was counted")
                self.assertEqual(few, many, (model, graph))
                waits.append(waits_of_many - waits_of_few)
            self.assertEqual([waits[0]] * 3, waits, graph)

    def test_steps_with_nan_are_skipped(self):
        """After a step with a huge rate all logits are NaN or infinite. Every later step is skipped, on CPUs too."""
        flags, found = ["--lr", 1e30], []
        for name, mesh in (("nan-one", (1, 1, 1, 1, 1, 1)), ("nan-four", (1, 4, 1, 1, 2, 2))):
            self.train(name, mesh, *flags, steps=4)
            found.append([line.get("skipped", False) for line in metrics(self.folder / name)])
        tessera("train", *self.flags("nan-cpu", (1, 1, 1, 1, 1, 1), ODD, 4, *flags), "--backend", "local")
        found.append([line.get("skipped", False) for line in metrics(self.folder / "nan-cpu")])
        self.assertTrue(found[0][-1], found)
        self.assertEqual([found[0]] * 3, found)

    def test_gradients_in_fp32_are_refused(self):
        result = run("train", *self.flags("refused", (1, 1, 1, 1, 1, 1), ODD, 1, "--grad-wire", "fp32"), "--backend", "nccl")
        self.assertEqual(2, result.returncode, result.stderr)
        self.assertIn("--grad-wire: got fp32, expected bf16", result.stderr)


if __name__ == "__main__":
    run_cases()
