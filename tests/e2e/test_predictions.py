#!/usr/bin/env python3
"""Checks the predictions of `tessera plan` against measured steps. docs/performance.md, Predictions, has the measured rows, the
predictions, and whether a row is within the bounds. Each row is planned again here."""
import json
import os
import pathlib
import re
import unittest

from program import ROOT, tessera
from summary import run_cases

TIME, MEMORY = 0.05, 0.03  # bounds of the relative errors
# The measured runs had whole masters, and without gtp they summed gradients of the whole table of embeddings.
WHOLE_MASTERS, WHOLE_TABLE = ("--masters", "fp32"), ("--embedding", "gather")
SECTION = (pathlib.Path(ROOT) / "docs/performance.md").read_text().split("\n## Predictions\n", 1)[1].split("\n## ", 1)[0]


def number(cell):
    return float(cell) if re.fullmatch(r"[\d.]+", cell) else None


def rows():
    """Returns the rows of the table as dictionaries by column."""
    lines = [line for line in SECTION.split("\n") if line.startswith("|")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    start = next(i for i, cells in enumerate(table) if cells[0] == "machine")
    return [dict(zip(table[start], cells)) for cells in table[start + 2:] if len(cells) == len(table[start])]


def plan(row):
    flags = row["flags"].strip("`").split()
    text = tessera("plan", "--model", "llama3-8b", "--dtype", "bf16", *WHOLE_MASTERS, *(() if "--gtp" in flags else WHOLE_TABLE), "--machine",
                   row["machine"], "--layers", row["layers"], *flags, "--json")
    return json.loads(text)


def search(machine, layers, *flags):
    text = tessera("plan", "--search", "--model", "llama3-8b", "--dtype", "bf16", "--machine", machine, "--layers", layers, *flags, "--json")
    return json.loads(text)["meshes"]


class Predictions(unittest.TestCase):
    def test_rows_are_within_the_bounds_unless_they_say_that_they_are_not(self):
        table = rows()
        self.assertGreater(len(table), 20)
        self.assertGreater(sum(row["use"] == "held out" for row in table), 12)
        for row in table:
            with self.subTest(row=row["machine"] + " " + row["flags"]):
                planned = plan(row)
                predicted, memory = planned["predicted"]["step_ms"], planned["memory_bytes"]["total"] / 1e9
                self.assertAlmostEqual(predicted / number(row["predicted ms"]), 1, delta=2e-3)
                self.assertAlmostEqual(memory / number(row["predicted GB"]), 1, delta=2e-3)
                self.assertAlmostEqual(planned["predicted"]["exposed_comm_ms"], number(row["predicted exposed"]), delta=0.06)
                missed = []
                if abs(predicted / number(row["ms"]) - 1) > TIME:
                    missed.append("time")
                if number(row["GB"]) and abs(memory / number(row["GB"]) - 1) > MEMORY:
                    missed.append("memory")
                self.assertEqual(row["missed"], ", ".join(missed))

    def test_the_times_of_experts_are_those_of_the_plan(self):
        lines = (pathlib.Path(ROOT) / "docs/experts.md").read_text().split("\n## Which mesh\n", 1)[1].split("\n## ", 1)[0].splitlines()
        table = {cells[0].strip(): cells[1:] for cells in (line.strip("|").split("|") for line in lines if line.startswith("|"))}
        for column, model in enumerate(("mixtral-8x7b", "qwen3-30b-a3b")):
            experts = json.loads(tessera("plan", "--model", model, "--layers", 8, "--machine", "h200", "--dtype", "bf16", "--seq-len", 8192,
                                         "--gtp", 4, "--egtp", 4, "--json"))["experts"]
            layouts = {(layout["ep"], layout["egtp"]): layout for layout in experts["layouts"]}
            for row, layout, key in (("products", (1, 4), "products_ms"), ("weights over egtp 4", (1, 4), "weights_ms"),
                                     ("tokens over ep 4", (4, 1), "tokens_ms")):
                self.assertAlmostEqual(layouts[layout][key], float(table[row][column].split()[0]), delta=0.051, msg=f"{row}, {model}")
            named = [f"--{name} {experts['recommended'][name]}" for name in ("ep", "egtp") if experts["recommended"][name] > 1]
            self.assertIn(" ".join(named), table["recommended"][column])

    def test_pieces_are_the_default_where_the_plan_is_faster_with_them(self):
        """Checks the table of docs/performance.md. A change in brackets: pieces are not the default."""
        text = (pathlib.Path(ROOT) / "docs/performance.md").read_text().split("| change of the step, size of a piece |", 1)[1].split("\n\n", 1)[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
        self.assertEqual(5, len(rows))
        for name, *cells in rows:
            model, tp = re.fullmatch(r"Llama-3-(\d+B), tp (\d)", name).groups()
            for tokens, cell in zip((1024, 2048, 4096, 8192), cells, strict=True):
                bracket, change = re.match(r"(\(?)([-+][\d.]+) %", cell).groups()
                flags = ("--model", f"llama3-{model.lower()}", "--layers", 8, "--dtype", "bf16", "--machine", "h200", "--tp", tp, "--seq-len", tokens)
                on, off, default = (json.loads(tessera("plan", *flags, *more, "--json"))["predicted"]["step_ms"]
                                    for more in (("--tp-overlap", "on"), ("--tp-overlap", "off"), ()))
                with self.subTest(name, tokens=tokens):
                    self.assertAlmostEqual(float(change), 100 * (on / off - 1), delta=0.5)
                    self.assertEqual(off if bracket else on, default)
                    self.assertLessEqual(default, 1.01 * min(on, off))

    def test_the_order_of_meshes_is_the_measured_order(self):
        """Steps of 4 sequences on 4 H200 (gtp 4, gtp 2 x dp 2, tp 2 x gtp 2), and of 2 sequences on 2 H100 (gtp 2, tp 2)."""
        four = [(mesh["tp"], mesh["gtp"], mesh["dp"]) for mesh in search("h200", 32, "--ranks", 4, "--global-batch", 4) if mesh["fits"]]
        measured = [(1, 4, 1), (1, 2, 2), (2, 2, 1)]
        self.assertEqual([mesh for mesh in four if mesh in measured], measured)
        two = [(mesh["tp"], mesh["gtp"]) for mesh in search("h100", 8, "--ranks", 2, "--global-batch", 2)]
        self.assertLess(two.index((1, 2)), two.index((2, 1)))

    @unittest.skipUnless(os.environ.get("TESSERA_E2E") == "full", "takes about 20 seconds of a core")
    def test_70b_on_256_gpus(self):
        text = tessera("plan", "--search", "--model", "llama3-70b", "--dtype", "bf16", "--machine", "h200", "--ranks", 256,
                       "--global-batch", 512, "--json")
        report = json.loads(text)
        self.assertTrue(report["fits"])
        self.assertGreater(len(report["meshes"]), 15)


if __name__ == "__main__":
    run_cases()
