#!/usr/bin/env python3
"""Tests flags that change the work of a GPU: against runs that must have the same bits, and against CPUs. tests/README.md has a table of
the flags. One GPU is enough, because ranks may share it. TESSERA_E2E_JOBS is the number of runs of one rank at a time (default 4).
TESSERA_E2E=full transfers a million pieces in test_many_pieces.
"""
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import gpu_ranks
from program import ROOT, bits, metrics, scratch, tessera, write_tokens
from summary import run_cases

if gpu_ranks.GPUS < 1:
    print("skipped: no GPU that the program can use")
    sys.exit(77)

JOBS = int(os.environ.get("TESSERA_E2E_JOBS", "4"))
FULL = os.environ.get("TESSERA_E2E") == "full"
STEPS = 6
GRAPH = ("--cuda-graph", "on")
POISON = ("--debug-poison", "on", "--gather-budget", "min", "--reduce-budget", "min")
SPLIT = ("--sequence-parallel", "on")  # shards tokens over tp
UNSPLIT = ("--sequence-parallel", "off")
FP8 = ("--gemm-format", "fp8", "--wire-format", "fp8")
NVFP4 = ("--gemm-format", "nvfp4", "--wire-format", "nvfp4")
MXFP8 = ("--gemm-format", "mxfp8", "--wire-format", "mxfp8")
CURRENT = ("--fp8-scaling", "current")
MUON = ("--optimizer", "muon", "--lr", 3e-3)
CODES = ("--tp-wire-format", "fp8")
DROPOUT = ("--hidden-dropout", 0.2, "--embedding-dropout", 0.1)
OVERLAP = ("--tp-overlap", "on")
WHOLE = ("--tp-overlap", "off")  # tokens travel over tp in whole transfers
# whole: products read stored bytes directly, because all sizes are multiples of 128. odd: operands are padded copies.
SIZES = {
    "whole": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 256},
    "odd": {"hidden_size": 72, "intermediate_size": 332, "num_hidden_layers": 2, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 12}}
SIZES["deep"] = SIZES["whole"] | {"num_hidden_layers": 8}
# Relative bound of the difference to CPUs. Products add in another order, and in fp8 with fewer bits.
LIKE = {"loss": 2e-3, "grad_norm": 3e-2}


@dataclasses.dataclass(frozen=True)
class Run:
    """A training run. `mesh` is (tp, gtp, dp).

    A step has few microbatches. Each one has transfers over tp, which are slow between ranks that share a GPU."""
    mesh: tuple
    flags: tuple = ()
    model: str = "whole"
    nodes: int = 0
    backend: str = "nccl"
    steps: int = STEPS
    unused: int = 0  # places of the mesh without a rank
    micro_batch: int = 3  # samples; a step has 12

    def plus(self, *flags, **changes):
        return dataclasses.replace(self, flags=(*self.flags, *flags), **changes)

    def ranks(self):
        return self.mesh[0] * self.mesh[1] * self.mesh[2] - self.unused

    def name(self):
        words = [self.backend, self.model, *self.mesh, self.steps, self.nodes, self.micro_batch, *self.flags]
        return "_".join(str(word).strip("-") for word in words).translate(str.maketrans("/*=,", "+x--"))


class GpuFlags(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("gpu-flags")
        tokens = write_tokens(cls.folder / "tokens", 131)
        cls.flags = ["--data", tokens, "--global-batch", 12, "--seq-len", 64, "--seed", 7, "--dtype", "bf16"]
        tiny = json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text())
        for name, sizes in SIZES.items():
            (cls.folder / f"{name}.json").write_text(json.dumps(tiny | sizes))
        cls.done, cls.valid = {}, ["--valid", tokens, "--eval-every", 2]

    def model(self, run):
        return self.folder / f"{run.model}.json" if run.model in SIZES else run.model

    def train(self, run):
        tp, gtp, dp = run.mesh
        flags = ["--model", self.model(run), *self.flags, "--tp", tp, "--gtp", gtp, "--dp", dp, "--steps", run.steps,
                 "--micro-batch", run.micro_batch, "--out", self.folder / run.name(), *run.flags]
        if run.backend == "local":
            tessera("train", "--backend", "local", *flags)
        else:
            gpu_ranks.train(run.ranks(), "--deterministic", "on", *flags, nodes=run.nodes)

    def take(self, runs):
        """Trains the runs that are not trained yet. Ranks that share a GPU are slow, so their runs follow one by one."""
        new = [run for run in dict.fromkeys(runs) if run not in self.done]
        alone = [run for run in new if run.ranks() == 1 or run.backend == "local"]
        for group, jobs in ((alone, JOBS), ([run for run in new if run not in alone], 1)):
            with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
                for run, _ in zip(group, pool.map(self.train, group)):
                    self.done[run] = bits(self.folder / run.name())

    def summary(self, run):
        return json.loads((self.folder / run.name() / "summary.json").read_text())

    def check_same(self, *groups):
        """Checks that the runs of a group have the same bits, skip no step, and launch graphs if `--cuda-graph` is on."""
        self.take([run for group in groups for run in group])
        for first, *others in groups:
            for run in (first, *others):
                with self.subTest(run.name()):
                    self.assertEqual(self.done[first], self.done[run])
                    summary = self.summary(run)
                    self.assertEqual(0, summary["skipped_steps"])
                    self.assertEqual(GRAPH[0] in run.flags, summary.get("graph_steps", 0) > 0)

    def check_like_cpus(self, *runs):
        """Checks that losses and norms of a run are close to a run on CPUs with the same flags."""
        on_cpus = [dataclasses.replace(run, backend="local") for run in runs]
        self.take([*runs, *on_cpus])
        for run, other in zip(runs, on_cpus):
            for ours, theirs in zip(self.lines(run), self.lines(other), strict=True):
                for value, apart in LIKE.items():
                    with self.subTest(run.name(), step=ours["step"], value=value):
                        self.assertAlmostEqual(ours[value], theirs[value], delta=apart * theirs[value])

    def lines(self, run):
        return metrics(self.folder / run.name())

    def test_steps_that_wait_for_the_host(self):
        """The kernels of a tiny model are shorter than the time that the host needs to enqueue them. The line that names the graph
        comes once, and only where a graph is possible and not used."""
        line = "--cuda-graph on enqueues a step as one launch"
        flags = ["--model", self.folder / "whole.json", *self.flags, "--micro-batch", 3, "--backend", "nccl"]
        for number, (steps, more, lines) in enumerate(((24, (), 1), (19, (), 0), (24, GRAPH, 0), (24, ("--mask-documents", "on"), 0))):
            text = tessera("train", *flags, *more, "--ranks", 1, "--steps", steps, "--out", self.folder / f"waits-{number}")
            self.assertEqual(lines, text.count(line), (steps, more, text))
        bench = ["bench", "step", "--model", self.folder / "whole.json", "--seq-len", 64, "--dtype", "bf16", "--steps", 10]
        self.assertEqual((1, 0), tuple(tessera(*bench, *more).count(line) for more in ((), GRAPH)))

    def test_activations_sent_as_fp8_codes(self):
        """Gathering fp8 codes gives the bits of gathering bf16 and quantizing afterwards, for every recipe and scaling."""
        for recipe in ("hybrid", "e4m3"):
            for scaling in ("delayed", "current"):
                plain = Run((2, 1, 1), (*FP8, *SPLIT, "--fp8-recipe", recipe, "--fp8-scaling", scaling))
                self.check_same([plain.plus(*WHOLE), plain.plus(*CODES), plain.plus(*CODES, *GRAPH)])
                odd = dataclasses.replace(plain, model="odd")
                self.check_same([odd, odd.plus(*CODES)])
        codes = Run((2, 1, 1), (*FP8, *SPLIT, "--fp8-recipe", "hybrid", "--fp8-scaling", "delayed", *CODES))
        self.check_same([codes, codes.plus(*POISON, mesh=(2, 2, 1))])
        self.check_like_cpus(codes)

    def check_tokens_sent_as_codes(self, product, *flags, both_sides=0):
        """Checks that gathering codes and scales gives the bits of gathering bf16 and quantizing afterwards. With 4 samples, each rank's
        tokens begin at a tile of every format. With 3 ranks and 1 sample, they begin in a tile, and columns are gathered in bf16.
        both_sides: gathers of a layer and microbatch that need both codes, which have more bytes than bf16."""
        layers, codes = SIZES["whole"]["num_hidden_layers"], ("--tp-wire-format", product)
        plain = Run((2, 1, 1), ("--gemm-format", product, "--wire-format", product, *SPLIT, *flags), micro_batch=4)
        pieces = plain.plus(*codes, *OVERLAP, "--tp-chunks", 2)
        self.check_same([plain.plus(*WHOLE), plain.plus(*WHOLE, *codes), plain.plus(*WHOLE, *codes, *GRAPH)],
                        [plain.plus(*OVERLAP, "--tp-chunks", 2), pieces, pieces.plus(*GRAPH, *POISON)])
        self.check_like_cpus(pieces)
        odd = Run((3, 1, 1), ("--gemm-format", product, *SPLIT, *flags), model="odd", micro_batch=1)
        self.check_same([odd, odd.plus(*codes)])
        both = both_sides * layers * STEPS * 3  # 3 microbatches a step
        for run, fallbacks in ((pieces, {"both_sides": both} if both else {}), (odd.plus(*codes), {"tiles": 4 * layers * STEPS * 12})):
            summary = self.summary(run)
            self.assertEqual(fallbacks, summary["tp_wire_fallbacks"], run.name())
            self.assertLess(0, summary["activation_bytes"][product])

    def test_tokens_sent_as_codes_of_fp8_block(self):
        self.check_tokens_sent_as_codes("fp8_block", both_sides=2)  # gradients of row layers

    def test_tokens_sent_as_codes_of_mxfp8(self):
        self.check_tokens_sent_as_codes("mxfp8", both_sides=2)

    def test_tokens_sent_as_codes_of_nvfp4(self):
        """Transformed columns do not travel as codes."""
        self.check_tokens_sent_as_codes("nvfp4", "--nvfp4-hadamard", "off")
        transformed = Run((2, 1, 1), (*NVFP4, *SPLIT), micro_batch=4)
        self.check_same([transformed, transformed.plus("--tp-wire-format", "nvfp4")])
        self.assertEqual(["transform"], list(self.summary(transformed.plus("--tp-wire-format", "nvfp4"))["tp_wire_fallbacks"]))

    def check_products_over_tp(self, *formats):
        """Tests products, with and without sequence parallelism. `formats`: (format of products, format of the wire)."""
        for product, wire in formats:
            one = Run((2, 1, 1), ("--gemm-format", product, "--wire-format", wire))
            split = one.plus(*SPLIT)
            self.check_same([split, split.plus(*GRAPH, *POISON)])
            self.check_like_cpus(one.plus(*UNSPLIT), split, dataclasses.replace(split, model="odd"))

    def test_products_over_tp(self):
        self.check_products_over_tp(("fp8", "fp8"), ("fp8_block", "fp8_block"), ("fp8_block", "bf16"), ("fp8", "nvfp4"))

    def test_decoded_products_over_tp(self):
        self.check_products_over_tp(("nvfp4", "nvfp4"), ("nvfp4", "bf16"), ("mxfp8", "mxfp8"), ("mxfp8", "nvfp4"))

    def test_decoded_weights_equal_quantized_bf16_weights(self):
        """Products of gathered codes have the bits of products that quantize a bf16 weight at each use, in every layout."""
        for product in ("nvfp4", "mxfp8"):
            runs = [Run((1, 1, 1), ("--gemm-format", product, "--wire-format", wire), model="odd", micro_batch=2)
                    for wire in ("bf16", product)]
            self.check_same([*runs, runs[1].plus(*GRAPH), runs[1].plus(*POISON, *GRAPH, mesh=(1, 3, 1)),
                             runs[1].plus("--debug-delays", 3, mesh=(1, 2, 1))])
            self.check_like_cpus(*runs)
            kernels = {each["format"]: each["kernel"] for each in self.summary(runs[1])["products_by_kernel"]}
            self.assertEqual({"bf16": "native", product: "decoded"}, kernels)

    def test_columnwise_copies(self):
        """Kept columnwise copies have the bits of copies that are made for each backward pass, and of bf16 weights that each product
        quantizes. A residency makes a copy once, with one launch for a unit."""
        for product in ("fp8", "fp8_block"):
            for mesh, model in (((1, 1, 1), "whole"), ((1, 1, 1), "odd"), ((1, 2, 1), "odd")):
                # A step has 4 microbatches, or 2 on two ranks.
                plain, micro = Run(mesh, ("--gemm-format", product), model=model), 4 // mesh[1]
                made = plain.plus("--wire-format", product, "--coalesce", 1, "--gather-budget", "min")
                kept = plain.plus("--wire-format", product, "--coalesce", 1, "--gather-budget", "10GB")
                units = plain.plus("--wire-format", product, "--gather-budget", "10GB")
                poisoned = kept.plus("--debug-poison", "on", *GRAPH)
                self.check_same([plain, made, kept, units, made.plus(*GRAPH), poisoned, units.plus(*GRAPH), units.plus("--debug-delays", 3)])
                launches = {run: self.summary(run)["columnwise_copies"] for run in (made, kept, units, poisoned)}
                weights, rest = divmod(launches[made], micro * STEPS)
                self.assertEqual(0, rest)
                # The first step, or the first two steps, have no schedule and copy each weight at each use.
                expected = [weights * (micro * recorded + STEPS - recorded) for recorded in (1, 2)]
                self.assertIn(launches[kept], expected)
                self.assertEqual(launches[kept], launches[poisoned])
                # The units of the odd model have several weights.
                (self.assertLess if model == "odd" else self.assertEqual)(launches[units], launches[kept])
            self.check_like_cpus(Run((1, 1, 1), ("--gemm-format", product, "--wire-format", product), model="odd"))

    def check_pieces(self, run, transport):
        """Checks that a run with --tp-overlap on transferred its pieces by `transport` (push or nccl)."""
        summary = self.summary(run)
        with self.subTest(run.name()):
            self.assertGreater(summary["tp_pieces"], 0)
            self.assertEqual((0, transport), (summary["tp_fallbacks"], summary["tp_transport"]))

    def test_products_in_chunks(self):
        """Products in chunks of tokens have the same bits in every mesh, in graphs, and with overlapping transfers."""
        cut = Run((2, 1, 1), (*SPLIT, "--tp-chunks", 2))
        chunks, pieces = cut.plus(*WHOLE), cut.plus(*OVERLAP)
        exchanged = pieces.plus("--pushes", "off")
        self.check_same([chunks, chunks.plus(*GRAPH, *POISON, mesh=(2, 2, 1)), pieces, pieces.plus(*GRAPH, *POISON),
                         pieces.plus("--debug-delays", 3, mesh=(2, 2, 1)), exchanged])
        odd = chunks.plus(model="odd")
        self.check_same([odd, pieces.plus(model="odd")])
        self.check_like_cpus(chunks, odd)
        self.check_pieces(pieces, "push")
        self.check_pieces(exchanged, "nccl")

    def test_products_in_formats_and_chunks(self):
        """Tests both scalings of fp8: one scale for a matrix, whose codes can also be sent, and a scale for each tile. Tests decoded
        products."""
        for formats, codes in ((FP8, CODES), (("--gemm-format", "fp8_block"), ()), (NVFP4, ())):
            cut = Run((2, 1, 1), (*formats, *SPLIT, "--tp-chunks", 2))
            chunks, pieces = cut.plus(*WHOLE), cut.plus(*OVERLAP)
            self.check_same([chunks, pieces, pieces.plus(*GRAPH, *POISON, mesh=(2, 2, 1)), pieces.plus(*codes, *GRAPH)])
            odd = chunks.plus(model="odd")
            self.check_same([odd, pieces.plus(model="odd")])
            self.check_like_cpus(chunks)
            self.check_pieces(pieces, "push")

    def test_many_pieces(self):
        """Pieces of tokens arrive whole and in order beside products and pushes of weights. A wrong element of a piece would change
        the weights, and therefore all later losses. With TESSERA_E2E=full, graphs move a million pieces."""
        pieces_of_step = 510
        for steps, more in ((12, ()), *([(2000, GRAPH)] if FULL else [])):
            whole = Run((2, 2, 1), (*SPLIT, "--tp-chunks", 4, *WHOLE, *more), model="deep", steps=steps, micro_batch=1)
            pieces = dataclasses.replace(whole, flags=(*SPLIT, "--tp-chunks", 4, *OVERLAP, *more))
            self.check_same([whole, pieces])
            summary = self.summary(pieces)
            self.assertEqual(("push", "push", 0), tuple(summary[key] for key in ("transport", "tp_transport", "tp_fallbacks")))
            self.assertEqual(steps * pieces_of_step, summary["tp_pieces"])

    def test_unused_places(self):
        """Groups that shrink have the bits of the smaller mesh. Ranks that adopt parts of dead places are close to CPUs."""
        for more in ((), ("--pushes", "off"), FP8):
            small = Run((1, 1, 2), more, micro_batch=1)
            self.check_same([small, dataclasses.replace(small.plus("--dead", "dp0.gtp1:0"), mesh=(1, 2, 2), unused=1)])
        slot = ("--dead", "dp0:1", "--reduced-batch", "auto")
        adopted = Run((2, 1, 2), slot, unused=1, micro_batch=1)
        self.check_like_cpus(adopted.plus(*UNSPLIT), adopted.plus(*SPLIT, "--pushes", "off"), adopted.plus(*FP8, model="odd"))
        spares = ("--dead", "dp0:0", "--idle", "dp1:2", "--tp-spares", "auto")
        self.check_like_cpus(Run((3, 1, 2), spares, model="odd", unused=2, micro_batch=1))

    def test_wire_formats_over_tp(self):
        for wire in ("mxfp8", "nvfp4"):
            one = Run((2, 1, 1), ("--wire-format", wire, *SPLIT))
            self.check_same([one, one.plus(*GRAPH, *POISON)])
            self.check_like_cpus(one)

    def test_recomputation(self):
        """Every policy gives the same bits: in bf16, in fp8 and with head norms, with and without a graph."""
        policies = [("--recompute", policy) for policy in ("none", "selective", "full")]
        policies += [("--recompute", "auto", "--activation-budget", budget) for budget in ("900KB", "30MB")]
        plain = Run((1, 1, 1))
        self.check_same([plain.plus(*policy, *graph) for policy in policies for graph in ((), GRAPH)])
        for one in (plain.plus(*FP8), plain.plus(*NVFP4), plain.plus(*MXFP8, model="odd"), plain.plus(model="qwen3-tiny-odd")):
            self.check_same([one.plus(*policies[0]), one.plus(*policies[1]), *(one.plus(*policy, *GRAPH) for policy in policies[1:])])
        one = Run((2, 1, 1), (*FP8, *SPLIT, *CODES))
        self.check_same([one.plus(*policies[0]), one.plus(*policies[1]), one.plus(*policies[2], *GRAPH)])

    def test_fp8_settings(self):
        """Recipes, amaxes, histories and margins give the same bits over gtp and with a graph, and are close to CPUs."""
        runs = [Run((1, 1, 1), (*FP8, *more)) for more in
                (("--fp8-recipe", "e4m3"), ("--fp8-amax", "newest"), ("--fp8-margin", 2), ("--fp8-history", 2),
                 (*CURRENT, "--fp8-recipe", "e4m3"))]
        self.check_same(*([run, run.plus(*GRAPH), run.plus(*GRAPH, *POISON, mesh=(1, 2, 1))] for run in runs))
        self.check_like_cpus(*runs)
        self.assertEqual(len(runs), len({str(self.done[run]) for run in runs}), "a setting does not change the result")

    def test_nvfp4_recipe(self):
        """Each part of the recipe gives the same bits over gtp, with poison, in chunks and with a graph, and is close to CPUs."""
        parts = (("--nvfp4-hadamard", "on", "--nvfp4-rounding", "stochastic"), ("--nvfp4-hadamard", "off"),
                 ("--nvfp4-rounding", "nearest"), ("--nvfp4-hadamard", "off", "--nvfp4-rounding", "nearest"))
        runs = [Run((1, 1, 1), (*NVFP4, *part), model="odd") for part in parts]
        self.check_same(*([run, run.plus(*GRAPH), run.plus(*GRAPH, *POISON, mesh=(1, 2, 1))] for run in runs))
        chunks = Run((2, 1, 1), (*NVFP4, *parts[0], *SPLIT, "--tp-chunks", 2))
        self.check_same([chunks.plus(*WHOLE), chunks.plus(*OVERLAP, *GRAPH, *POISON, mesh=(2, 2, 1))])
        self.check_like_cpus(*runs, chunks.plus(*WHOLE))
        self.assertEqual(len(runs), len({str(self.done[run]) for run in runs}), "a setting does not change the result")

    def test_format_rules(self):
        """Tests layers with other formats, for each pass and for products."""
        runs = [Run((1, 1, 1), flags) for flags in
                (("--wire-format", "nvfp4", "--wire-rules", "layers.0.*=mxfp8,layers.1.mlp.*=bf16"),
                 ("--wire-format", "nvfp4", "--wire-rules-backward", "layers.0.*=mxfp8"),
                 ("--gemm-format", "fp8", "--gemm-rules", "layers.0.*=fp8_block,output.weight=fp8,layers.1.mlp.down.weight=bf16"),
                 ("--wire-format", "nvfp4", "--wire-format-backward", "mxfp8"),
                 ("--wire-format-backward", "fp8"))]
        self.check_same(*([run, run.plus(*GRAPH), run.plus(*POISON, *GRAPH, mesh=(1, 2, 1))] for run in runs))
        copies = runs[3].plus(mesh=(1, 1, 2))
        self.check_same([copies, copies.plus("--zero", "off", *GRAPH)])
        self.check_like_cpus(*runs)

    def test_formats_with_replicas(self):
        for flags in (FP8, NVFP4, ("--wire-format", "nvfp4", "--gemm-format", "fp8_block")):
            one = Run((1, 1, 2), flags)
            self.check_same([one, one.plus("--zero", "off"), one.plus(*GRAPH, *POISON)])

    def test_formats_over_each_transport(self):
        """Tests formats without pushes, with delays, with large messages, and between two nodes."""
        for flags, ways in (((), (("--coalesce", "128MB"),)),
                            (FP8, (("--pushes", "off"), ("--debug-delays", 3), ("--coalesce", "128MB"))),
                            (("--wire-format", "mxfp8"), (("--coalesce", "128MB", "--pushes", "off", *GRAPH),))):
            one, two = Run((1, 1, 1), flags), Run((1, 2, 1), flags)
            runs = [one, *(two.plus(*way) for way in ways)]
            if flags and gpu_ranks.hosts_can_be_named():
                runs.append(two.plus(nodes=2))
            self.check_same(runs)

    def test_gradient_wire_types(self):
        one = Run((1, 1, 1), ("--grad-wire", "fp32"))
        self.check_same([one, one.plus(*GRAPH, *POISON, mesh=(1, 2, 1))])
        self.check_same([one.plus(mesh=(1, 1, 2)), one.plus("--zero", "off", *GRAPH, mesh=(1, 1, 2))])
        self.check_like_cpus(one)
        self.take([Run((1, 1, 1))])
        self.assertNotEqual(self.done[one], self.done[Run((1, 1, 1))], "--grad-wire does not change the result")

    def test_masked_documents(self):
        for flags in ((), FP8):
            one = Run((1, 1, 1), ("--mask-documents", "on", *flags))
            self.check_same([one, one.plus(mesh=(1, 2, 1))])
            self.check_like_cpus(one)

    def test_optimizer_settings(self):
        one = Run((1, 1, 1), ("--clip", 0.5, "--weight-decay", 0.3, "--beta1", 0.8, "--beta2", 0.9, "--eps", 1e-6, "--lr", 3e-3,
                              "--min-lr", 1e-3, "--warmup-steps", 2, "--lr-schedule", "wsd", "--decay-steps", 3, "--decay-shape", "sqrt"),
                  micro_batch=2)
        self.check_same([one, one.plus(*GRAPH), one.plus(*GRAPH, mesh=(1, 2, 1))])
        self.check_like_cpus(one)

    def test_moments_in_bf16(self):
        one = Run((1, 1, 1), ("--moments", "bf16", "--lr", 3e-3), micro_batch=2)
        self.check_same([one, one.plus(*GRAPH), one.plus(*GRAPH, mesh=(1, 2, 1))])
        self.check_like_cpus(one)

    def test_rates_and_decays_by_name(self):
        """One launch updates shards of several groups. A graph reads the scalars of all groups from device memory."""
        rules = ("--lr-rules", "*=2,*norm*=0.5,embedding.*=0", "--decay-rules", "*norm*=0.7", "--lr", 3e-3)
        one = Run((1, 1, 1), rules)
        self.check_same([one, one.plus(*GRAPH), one.plus(*GRAPH, mesh=(1, 2, 1)), one.plus("--debug-suppress", "2,5", *GRAPH)])
        self.check_like_cpus(one, Run((1, 1, 1), (*rules, "--moments", "bf16")))

    def test_split_masters(self):
        """Split masters have the bits of fp32 masters, with a graph and without, and when a run changes the storage."""
        split = Run((1, 1, 1), ("--masters", "split", "--lr", 3e-3), micro_batch=2)
        whole = Run((1, 1, 1), ("--masters", "fp32", "--lr", 3e-3), micro_batch=2)
        self.check_same([whole, split, split.plus(*GRAPH), split.plus(*GRAPH, mesh=(1, 2, 1)), split.plus(*POISON)])
        self.check_like_cpus(split)
        both = [Run((1, 1, 1), (*flags, "--moments", "bf16"), micro_batch=2) for flags in (("--masters", "fp32"), ("--masters", "split"))]
        self.check_same([*both, both[1].plus(*GRAPH)])
        out = self.folder / "resumed_masters"
        part = Run((1, 1, 1), ("--masters", "split", "--lr", 3e-3, "--schedule-steps", STEPS, *GRAPH), steps=STEPS // 2, micro_batch=2)
        self.take([part])
        gpu_ranks.train(1, "--deterministic", "on", "--resume", self.folder / part.name() / "checkpoints" / f"step-{STEPS // 2:08}",
                        "--masters", "fp32", "--steps", STEPS, "--out", out, *GRAPH)
        self.assertEqual(self.done[whole]["tensors"], bits(out)["tensors"])

    def test_muon(self):
        """Muon has the same bits with a graph, over gtp, with ZeRO-1 and with split masters, and losses close to those of CPUs."""
        one = Run((1, 1, 1), MUON, micro_batch=2)
        small = one.plus("--moments", "bf16", "--muon-scale", "original", "--muon-nesterov", "off", "--muon-steps", 3, "--muon-momentum", 0.9)
        self.check_same([one, one.plus(*GRAPH), one.plus("--masters", "fp32"), *(one.plus(*f, mesh=(1, 2, 1)) for f in (POISON, GRAPH))],
                        [Run((1, 1, 2), (*MUON, "--zero", state, *GRAPH), micro_batch=2) for state in ("off", "on")],
                        [small, small.plus("--masters", "fp32", *GRAPH), small.plus("--debug-suppress", "2", mesh=(1, 2, 1))])
        self.check_like_cpus(one, small, dataclasses.replace(one, model="odd"))

    def test_dropout(self):
        """Graphs, gtp degrees, policies, repeated and resumed steps have the same masks, which are the masks of CPUs."""
        one = Run((1, 1, 1), DROPOUT)
        full = one.plus("--recompute", "full", *GRAPH)
        self.check_same([one, one.plus(*GRAPH), full, full.plus(*POISON, mesh=(1, 2, 1)),
                         one.plus("--debug-suppress", "2,5", *GRAPH)])
        split = Run((2, 1, 1), (*DROPOUT, *SPLIT))
        self.check_same([split, split.plus(*GRAPH), split.plus(*POISON, mesh=(2, 2, 1))])
        self.check_like_cpus(one, split, dataclasses.replace(split, model="odd"), Run((1, 1, 1), (*DROPOUT, *FP8)))
        plain = Run((1, 1, 1))
        self.check_same([plain, plain.plus("--hidden-dropout", 0, "--embedding-dropout", 0)])
        self.assertNotEqual(self.done[plain], self.done[one], "dropout does not change the result")
        out = self.folder / "resumed_dropout"
        part = Run((1, 1, 1), (*DROPOUT, "--schedule-steps", STEPS, *GRAPH), steps=STEPS // 2)
        self.take([part])
        gpu_ranks.train(1, "--deterministic", "on", "--resume", self.folder / part.name() / "checkpoints" / f"step-{STEPS // 2:08}",
                        "--steps", STEPS, "--out", out, *GRAPH)
        self.assertEqual(self.done[one]["tensors"], bits(out)["tensors"])

    def test_evaluations_between_steps(self):
        for flags in ((), FP8):
            one = Run((1, 1, 1), (*flags, *self.valid))
            runs = [one, one.plus(*GRAPH), one.plus(*GRAPH, mesh=(1, 2, 1))]
            self.check_same(runs)
            losses = [[line.get("valid_loss") for line in self.lines(run)] for run in runs]
            self.assertEqual([losses[0]] * len(runs), losses)
            self.assertEqual(3, sum(loss is not None for loss in losses[0]))

    def test_a_timeline_does_not_change_the_bits_of_a_graph(self):
        for one in (Run((1, 1, 1), GRAPH), Run((1, 2, 1), (*FP8, *GRAPH))):
            self.check_same([one, one.plus("--trace-step", 5)])

    def test_resumed_runs(self):
        """A resumed run has the bits of the whole run: in bf16 and in fp8 with its history, with and without a graph, and on
        another mesh."""
        for flags, gtp in (((), 1), (FP8, 2), ((*FP8, "--fp8-history", 3), 1)):
            whole = Run((1, 1, 1), flags)
            part = Run((1, 1, 1), (*flags, "--schedule-steps", STEPS, *GRAPH), steps=STEPS // 2)
            self.take([whole, part])
            for graph in ((), GRAPH):
                out = self.folder / f"resumed_{part.name()}_{len(graph)}"
                checkpoint = self.folder / part.name() / "checkpoints" / f"step-{STEPS // 2:08}"
                gpu_ranks.train(gtp, "--deterministic", "on", "--resume", checkpoint, "--ranks", gtp, "--gtp", gtp, "--steps", STEPS,
                                "--out", out, *graph)
                rest = bits(out)
                self.assertEqual(self.done[whole]["tensors"], rest["tensors"], out.name)
                self.assertEqual(self.done[whole]["steps"][STEPS // 2:], rest["steps"], out.name)

    def test_graphs_of_steps_longer_than_the_time_limit(self):
        """--timeout-s limits a wait for other ranks. A graph contains a whole step, so its limit grows with the step time."""
        tiny = json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text())
        (self.folder / "large.json").write_text(json.dumps(tiny | SIZES["whole"] | {
            "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8, "num_attention_heads": 16, "head_dim": 128}))
        found = []
        for name, *flags in (("enqueued",), ("graph", *GRAPH)):
            out = self.folder / f"large-{name}"
            gpu_ranks.train(1, "--model", self.folder / "large.json", "--data", self.folder / "tokens", "--global-batch", 3072,
                            "--micro-batch", 32, "--seq-len", 64, "--seed", 7, "--dtype", "bf16", "--steps", 4, "--timeout-s",
                            0.3, "--deterministic", "on", "--out", out, *flags)
            found.append([(line["loss"], line["grad_norm"]) for line in metrics(out)])
            self.assertGreater(metrics(out)[-1]["step_ms"], 400, "the step is too short for this test")
        self.assertEqual(*found)
        self.assertGreater(json.loads((self.folder / "large-graph" / "summary.json").read_text())["graph_steps"], 0)

    def test_init_from_a_folder(self):
        """--init loads the same weights as a run that resumes from the converted folder."""
        initial, folder, checkpoint = (self.folder / name for name in ("initial", "weights", "converted"))
        tessera("train", "--model", "qwen2-tiny-odd", *self.flags, "--steps", 0, "--out", initial)
        tessera("convert", initial, folder)
        tessera("convert", folder, checkpoint, "--dtype", "bf16")
        flags = ["--data", self.folder / "tokens", "--global-batch", 12, "--seq-len", 64, "--steps", 3, "--deterministic", "on"]
        found = []
        for name, ranks, *start in (("init", 1, "--init", folder), ("resumed", 1, "--resume", checkpoint),
                                    ("init-gtp2", 2, "--init", folder, "--gtp", 2)):
            gpu_ranks.train(ranks, *start, *flags, "--dtype", "bf16", "--out", self.folder / name)
            found.append(bits(self.folder / name))
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])

    def test_suppressed_steps_over_tp(self):
        for flags in (UNSPLIT, (*FP8, *SPLIT, *CODES)):
            one = Run((2, 1, 1), flags)
            self.check_same([one, *(one.plus("--debug-suppress", "2,4", *graph) for graph in ((), GRAPH))])


if __name__ == "__main__":
    run_cases()
