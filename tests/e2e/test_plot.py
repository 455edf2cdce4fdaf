#!/usr/bin/env python3
"""Tests tessera plot on runs of the program: resumed with another mesh, one step, no step, damaged lines, several runs."""
import shutil
import unittest
import xml.etree.ElementTree as ElementTree

from program import metrics, run, scratch, tessera, write_tokens
from summary import run_cases

SVG = "{http://www.w3.org/2000/svg}"


class Plot(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("plot")
        data = write_tokens(cls.folder / "text", 97)
        cls.common = ("--data", data, "--seq-len", 32, "--global-batch", 4, "--lr", 1e-2)
        cls.out = cls.folder / "run"
        tessera("train", "--model", "llama-tiny-odd", *cls.common, "--valid", data, "--eval-every", 4, "--tp", 2, "--gtp", 2,
                "--steps", 8, "--save-every", 4, "--out", cls.out)

    def copy(self, name):
        return shutil.copytree(self.out, self.folder / name)

    def refused(self, *arguments):
        result = run("plot", *arguments)
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(len(result.stderr.splitlines()), 1)
        return result.stderr

    def polylines(self, path):
        return [line.get("points").split() for line in ElementTree.parse(path).getroot().iter(SVG + "polyline")]

    def test_a_run_is_drawn(self):
        text = tessera("plot", self.out)
        lines = metrics(self.out)
        self.assertIn(f"steps 1 to 8, loss {lines[-1]['loss']:.4f}", text)
        self.assertIn(f"held-out loss {lines[-1]['valid_loss']:.4f}", text)
        self.assertRegex(text, r"slowest rank: [0-3], in [2-8] of 8 measured steps")
        curves = self.polylines(self.out / "plot.svg")
        self.assertEqual([len(curve) for curve in curves], [8, 8, 8, 8])
        # The vertical positions of losses are proportional to the losses.
        heights = [float(point.split(",")[1]) for point in curves[0]]
        losses = [line["loss"] for line in lines] + [line["valid_loss"] for line in lines if "valid_loss" in line]
        high, low = max(losses), min(losses)
        for line, height in zip(lines, heights):
            self.assertAlmostEqual(height, 42 + 190 * (high - line["loss"]) / (high - low), delta=0.1)
        self.assertEqual(len(list(ElementTree.parse(self.out / "plot.svg").getroot().iter(SVG + "circle"))), 2)

    def test_a_resumed_run_is_one_curve(self):
        out = self.copy("resumed")
        tessera("plot", out)  # its plot.svg does not disturb the resume
        tessera("train", "--resume", out / "checkpoints/step-00000004", "--out", out, "--gtp", 1, "--tp", 3, "--steps", 12,
                "--schedule-steps", 8)
        text = tessera("plot", out)
        self.assertIn("steps 1 to 12, loss", text)
        self.assertEqual([len(curve) for curve in self.polylines(out / "plot.svg")], [12] * 4)

    def test_several_runs_are_drawn_together(self):
        one = self.folder / "one"
        tessera("train", "--model", "llama-tiny-odd", *self.common, "--steps", 1, "--out", one)
        svg = self.folder / "both.svg"
        text = tessera("plot", self.out, one, "--svg", svg, "--columns", 50)
        self.assertIn(f"a  {self.out}\n", text)
        self.assertIn(f"b  {one}\n   step 1, loss", text)
        names = [text.text for text in ElementTree.parse(svg).getroot().iter(SVG + "text")]
        self.assertIn(str(one), names)
        self.assertIn("slowest rank", text.split(f"b  {one}")[0])
        self.assertNotIn("slowest rank", text.split(f"b  {one}")[1])  # one rank
        self.assertFalse((one / "plot.svg").exists())

    def test_a_run_without_a_step_is_refused(self):
        empty = self.folder / "empty"
        tessera("train", "--model", "llama-tiny-odd", *self.common, "--steps", 0, "--out", empty)
        self.assertIn("no step has finished", self.refused(empty))
        self.assertIn("no step has finished", tessera("plot", self.out, empty, "--svg", self.folder / "with-empty.svg"))

    def test_damaged_lines(self):
        out = self.copy("damaged")
        path = out / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines)[:-20])
        text = tessera("plot", out)
        self.assertIn("steps 1 to 7", text)
        self.assertIn("the last line of metrics.jsonl is incomplete", text)
        (out / "plot.svg").unlink()
        path.write_text("".join(lines[:3]) + "\x1b[31m broken\n" + "".join(lines[4:]))
        message = self.refused(out)
        self.assertIn("metrics.jsonl:4: expected a line of metrics", message)
        self.assertNotIn("\x1b", message)
        self.assertFalse((out / "plot.svg").exists())

    def test_losses_that_are_not_finite_and_spikes(self):
        out = self.copy("nan")
        path = out / "metrics.jsonl"
        line = path.read_text().splitlines()[-1].replace(', "valid_loss"', ', "skipped": true, "valid_loss"')
        loss = metrics(out)[-1]["loss"]
        more = [line.replace('"step": 8', f'"step": {step}').replace(f'"loss": {loss}', f'"loss": {value}', 1)
                for step, value in ((9, '"NaN"'), (10, 60.5), (11, loss))]
        path.write_text(path.read_text() + "\n".join(more) + "\n")
        text = tessera("plot", out)
        self.assertIn("1 losses are not finite, first in step 9", text)
        self.assertIn("3 steps were skipped: their gradient was not finite, first in step 9", text)
        self.assertIn("loss spike at step 10: 60.5000", text)
        self.assertIn("!", text)

    def test_other_paths_are_refused(self):
        self.assertIn("is not a run", self.refused(self.folder / "none"))
        self.assertIn("is not a run", self.refused(self.folder))
        self.assertIn("--columns", self.refused(self.out, "--columns", 3))
        self.assertIn("--svg: got ", self.refused(self.out, "--svg", self.folder / "none" / "plot.svg"))


if __name__ == "__main__":
    run_cases()
