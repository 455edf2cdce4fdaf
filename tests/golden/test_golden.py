#!/usr/bin/env python3
"""Compares help texts and the files of runs with the stored files of this folder, byte for byte, except for masked numbers.

    tests/golden/test_golden.py --write     # writes the stored files with the program in $TESSERA or build/cpu

README.md describes the masks.
"""
import difflib
import json
import pathlib
import re
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from program import ROOT, SERVER, command, run, scratch, tessera, write_tokens
from summary import run_cases

GOLDEN = pathlib.Path(__file__).resolve().parent
HELP = ("", "train", "generate", "evaluate", "inspect", "inspect layout", "convert", "plan", "plot", "resume-command", "bench",
        "bench kernels", "bench step", "bench products", "bench links", "bench schedule")
TIMES = ("tokens_per_second", "step_ms", "exposed_comm_ms", "exposed_tp_ms", "slowest_rank", "slowest_rank_wait_ms", "mfu")
EXPOSED = ("weights", "tp")  # keys of exposed_ms; "tp" is also a degree of a mesh, which is an integer
DEPEND_ON_PROCESSOR = ("loss", "grad_norm", "valid_loss", "aux_loss", "z_loss")
DIGITS = 6
# Budgets of `auto` would depend on times, and a cosine on the processor.
COMMON = ("--backend", "local", "--global-batch", 12, "--seq-len", 16, "--steps", 3, "--seed", 5, "--lr", 3e-3, "--lr-schedule", "constant",
          "--warmup-steps", 2, "--gather-budget", "1GB", "--reduce-budget", "1GB")
FORMATS = ("--dtype", "bf16", "--wire-format", "nvfp4", "--wire-rules", "layers.0.*=mxfp8", "--wire-format-backward", "mxfp8",
           "--wire-rules-backward", "layers.1.mlp.*=bf16", "--gemm-format", "fp8", "--gemm-rules", "layers.1.*=fp8_block",
           "--fp8-history", 4, "--tp-wire-format", "fp8", "--tp-chunks", 2, "--tp-overlap", "on")
# Sizes that 4-bit numbers accept.
EVEN = {"hidden_size": 72, "intermediate_size": 332, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12}
# The flags of each run. FOLDER is the folder of all runs. A later run may read the files of an earlier one.
RUNS = {
    "dense": ("--model", "llama-tiny-odd", "--dtype", "fp64", "--tp", 2, "--gtp", 2, "--valid", "FOLDER/tokens", "--eval-every", 2,
              "--peak-flops", 1e12, "--reduce-order", "hierarchical", "--ranks-per-node", 2),
    "resumed": ("--resume", "FOLDER/dense/checkpoints/step-00000003", "--steps", 5, "--gtp", 3, "--tp", 1, "--dp", 2, "--recompute",
                "full", "--debug-suppress", 4, "--gather-budget", "min", "--reduce-budget", "min"),
    "experts": ("--model", "dots1-tiny-odd", "--dtype", "fp64", "--gtp", 4, "--ep", 2, "--egtp", 2, "--expert-capacity", 1.1,
                "--expert-counts", 2),
    "experts-tp": ("--model", "mixtral-tiny-odd", "--dtype", "fp64", "--tp", 2, "--etp", 2, "--router-z-loss", 1e-3, "--moe-aux", "pooled"),
    "formats": ("--model", "FOLDER/even.json", "--tp", 2, "--gtp", 2, *FORMATS),
    "unused": ("--model", "llama-tiny-odd", "--dtype", "fp64", "--tp", 3, "--gtp", 2, "--dp", 2, "--dead", "dp0.gtp1:0", "--idle",
               "dp1.gtp0:2", "--tp-spares", "auto", "--reduced-batch", "auto", "--zero", "off"),
    "initial": ("--init", "FOLDER/weights", "--dtype", "fp64", "--hidden-dropout", 0.2, "--embedding-dropout", 0.1, "--recompute", "auto",
                "--activation-budget", "200KB", "--mask-documents", "on"),
    "skipped": ("--model", "llama-tiny-odd", "--dtype", "fp32", "--gtp", 2, "--lr", 1e30, "--grad-wire", "bf16"),
}


def flags_of(name):
    """Returns the words of a run. Flags of the run replace common flags. A resumed run reads most settings from the checkpoint."""
    given = RUNS[name]
    if "--resume" in given:
        return [*given, "--out", f"FOLDER/{name}"]
    flags = [*COMMON, *given, "--data", "FOLDER/tokens", "--out", f"FOLDER/{name}"]
    return [word for pair in dict(zip(flags[::2], flags[1::2], strict=True)).items() for word in pair]


def masked(text, digits):
    """Returns the text of a JSON file with `#` in place of numbers that are not equal everywhere. `digits` of losses remain."""
    number, fraction = r"(-?\d[-+.\de]*)", r"(-?\d+[.e][-+\de]*)"
    text = re.sub(rf'("(?:{"|".join(TIMES)})": ){number}', lambda found: found[1] + hidden(found[2]), text)
    text = re.sub(rf'("(?:{"|".join(EXPOSED)})": ){fraction}', lambda found: found[1] + hidden(found[2]), text)
    return re.sub(rf'("(?:{"|".join(DEPEND_ON_PROCESSOR)})": ){number}', lambda found: found[1] + shortened(found[2], digits), text)


def hidden(number):
    """Returns the form of a number without its digits: `#` for an integer, `#.#` for another number."""
    return "#" if number.isdecimal() else "#.#"


def shortened(number, digits):
    """Returns the first digits of a number that has more, or its form if `digits` is 0."""
    if digits == 0:
        return hidden(number)
    significant = re.match(rf"-?[0.]*(?:\d\.?){{{digits}}}", number)
    return number if significant is None or significant.end() == len(number) else significant[0] + "#" + number[len(number.split("e")[0]):]


class Golden:
    """Runs the program, and returns the texts of the stored files."""

    def __init__(self):
        self.folder = scratch("golden")
        write_tokens(self.folder / "tokens", 131)
        tiny = json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text())
        (self.folder / "even.json").write_text(json.dumps(tiny | EVEN))

    def words(self, *words):
        return [str(word).replace("FOLDER", str(self.folder)) for word in words]

    def help_text(self, subcommand):
        line = command(*subcommand.split(), "--help")
        result = SERVER.run(line, timeout=60) if SERVER else run(*subcommand.split(), "--help")
        return f"$ tessera {subcommand} --help\n".replace("  ", " ") + result.stdout

    def run_text(self, name):
        words = flags_of(name)
        if name == "initial":
            tessera("convert", self.folder / "dense", self.folder / "weights")
        tessera("train", *self.words(*words))
        digits = DIGITS if "fp64" in words or "--resume" in words else 0
        parts = [f"$ tessera train {' '.join(map(str, words))}\n"]
        for file in ("config.json", "metrics.jsonl", "summary.json"):
            text = (self.folder / name / file).read_text().replace(str(self.folder), "FOLDER")
            parts.append(f"== {file}\n{masked(text, digits) if file != 'config.json' else text}")
        return "".join(parts)


def stored_file(name):
    return GOLDEN / f"{name}.txt"


def help_file(subcommand):
    return stored_file("help-" + (subcommand.replace(" ", "-") or "tessera"))


class GoldenFiles(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = Golden()

    def check(self, path, text):
        stored = path.read_text() if path.exists() else ""
        if stored == text:
            return
        lines = difflib.unified_diff(stored.splitlines(), text.splitlines(), path.name, "this program", n=1, lineterm="")
        self.fail("\n".join(["", *list(lines)[:40], "tests/golden/test_golden.py --write writes the stored files"]))

    def test_help_texts(self):
        for subcommand in HELP:
            with self.subTest(subcommand):
                self.check(help_file(subcommand), self.golden.help_text(subcommand))

    def test_files_of_runs(self):
        for name in RUNS:
            with self.subTest(name):
                self.check(stored_file(name), self.golden.run_text(name))

    def test_every_stored_file_is_compared(self):
        expected = [*map(help_file, HELP), *map(stored_file, RUNS)]
        self.assertEqual(sorted(expected), sorted(GOLDEN.glob("*.txt")))

    def test_every_subcommand_has_a_file(self):
        for parent, names in (("", HELP), ("bench", [name.removeprefix("bench ") for name in HELP if name.startswith("bench ")])):
            listed = re.findall(r"(?m)^  ([a-z-]+) ", self.golden.help_text(parent))
            self.assertLessEqual({*listed}, {*names})

    def test_masks_keep_the_form_of_numbers(self):
        line = '{"loss": 5.798095583915710, "grad_norm": 0.00123456789, "lr": 0.003, "step_ms": 1.5, "slowest_rank": 3, "z_loss": 0.0}'
        self.assertEqual('{"loss": 5.79809#, "grad_norm": 0.00123456#, "lr": 0.003, "step_ms": #.#, "slowest_rank": #, "z_loss": 0.0}',
                         masked(line, 6))
        self.assertEqual('{"loss": #.#, "grad_norm": "NaN", "mfu": null, "tokens": 12}',
                         masked('{"loss": 4.5, "grad_norm": "NaN", "mfu": null, "tokens": 12}', 0))
        self.assertEqual('{"mesh": {"tp": 2}, "exposed_ms": {"tp": #.#}}', masked('{"mesh": {"tp": 2}, "exposed_ms": {"tp": 0.5}}', 0))
        self.assertEqual('{"aux_loss": 1.23456#e-05}', masked('{"aux_loss": 1.23456789e-05}', 6))


def write_golden_files():
    golden = Golden()
    texts = {**{help_file(subcommand): golden.help_text(subcommand) for subcommand in HELP},
             **{stored_file(name): golden.run_text(name) for name in RUNS}}
    for path in GOLDEN.glob("*.txt"):
        path.unlink()
    for path, text in texts.items():
        path.write_text(text)
    print(f"wrote {len(texts)} files to {GOLDEN}")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write_golden_files()
    else:
        run_cases()
