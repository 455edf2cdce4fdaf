#!/usr/bin/env python3
"""Tests tools/schedule_svg.py: a drawing shows every lane, kind and pass. Bad input prints one line, with exit code 2."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import schedule_svg  # noqa: E402
from summary import run_cases  # noqa: E402

LANES = ("compute", "gather", "reduce", "replicas")
SVG = "{http://www.w3.org/2000/svg}"


def span(lane, begin, duration, name, **details):
    return {"ph": "X", "cat": lane, "pid": 0, "tid": LANES.index(lane), "ts": begin, "dur": duration, "name": name,
            "args": details}


def step(layers=2, us=1000, update="update"):
    """Returns the trace of a step with `layers` weights: forward, backward, optimizer, gathers and reductions."""
    names = [f"layers.{layer}.mlp.gate_up.weight" for layer in range(layers)]
    events = [{"ph": "M", "name": "thread_name", "tid": tid, "args": {"name": lane}} for tid, lane in enumerate(LANES)]
    for i, name in enumerate(names):
        events += [span("gather", i * us, us, f"gather {name}", weights=[name, "x"], bytes=1),
                   span("compute", (1 + i) * us, us, f"fprop {name}"),
                   span("compute", (1 + 2 * layers - i) * us, us, f"dgrad {name}", before="train mb 0 backward produce"),
                   span("reduce", (2 + 2 * layers - i) * us, us, f"reduce {name}", weights=[name]),
                   span("replicas", (3 + 2 * layers - i) * us, us, f"replicas {name}", weights=[name]),
                   span("compute", (4 + 2 * layers + i) * us, us, f"{update} {name}")]
    return {"traceEvents": events}


class ScheduleSvg(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.trace, self.svg = pathlib.Path(folder.name) / "t.json", pathlib.Path(folder.name) / "t.svg"

    def run_tool(self, trace, *options):
        self.trace.write_text(trace if isinstance(trace, str) else json.dumps(trace))
        command = [sys.executable, str(ROOT / "tools/schedule_svg.py"), str(self.trace), str(self.svg), *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def draw(self, trace, *options):
        result = self.run_tool(trace, *options)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        root = ElementTree.parse(self.svg).getroot()
        return root, [element.text for element in root.iter(SVG + "text")]

    def bars(self, root, kind):
        """Returns (begin, end) in pixels of the marks of one colour."""
        paths = [path.get("d") for path in root.iter(SVG + "path") if path.get("fill") == schedule_svg.COLOURS[kind]]
        found = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", "".join(paths))
        return [(float(begin), float(begin) + float(width)) for begin, width in found]

    def test_lanes_kinds_passes_and_weights_have_labels(self):
        root, words = self.draw(step(), "--title", "a <step> & more")
        for word in ("a <step> & more", *LANES, "forward", "backward", "optimizer", "0.gate_up", "fprop 0.gate_up",
                     "0.gate_up +1", "ms"):
            self.assertIn(word, words)
        for kind in ("forward", "backward", "optimizer", "gather", "reduce", "replicas"):
            self.assertEqual(len(self.bars(root, kind)), 2, kind)

    def test_bars_are_at_the_positions_of_their_times(self):
        root, _ = self.draw(step(layers=3, us=1000, update="adamw"))  # as in traces of older plans
        self.assertNotEqual(self.bars(root, "optimizer"), [])
        whole = schedule_svg.WIDTH - schedule_svg.LEFT - schedule_svg.RIGHT
        milliseconds = 13  # the last update ends at 4 + 2 * 3 + 3
        for (begin, end), at in zip(sorted(self.bars(root, "gather")), range(3)):
            self.assertAlmostEqual(begin, schedule_svg.LEFT + whole * at / milliseconds, delta=0.1)
            self.assertAlmostEqual(end, schedule_svg.LEFT + whole * (at + 1) / milliseconds, delta=0.5)

    def test_unknown_kinds_are_drawn(self):
        categories = ("gather over compute", "wait", "new")
        events = [{**span("gather", i, 1, "x"), "cat": category} for i, category in enumerate(categories)]
        root, words = self.draw(events)
        for kind in ("gather", "wait", "other"):
            self.assertIn(kind, words)
            self.assertEqual(len(self.bars(root, kind)), 1, kind)

    def test_only_the_window_is_drawn(self):
        root, words = self.draw(step(), "--from-ms", 0.5, "--to-ms", 1.5)
        edges = [edge for kind in ("gather", "forward") for bar in self.bars(root, kind) for edge in bar]
        self.assertGreaterEqual(min(edges), schedule_svg.LEFT)
        self.assertLessEqual(max(edges), schedule_svg.WIDTH - schedule_svg.RIGHT)
        self.assertEqual(self.bars(root, "optimizer"), [])
        self.assertNotIn("optimizer", words)

    def test_the_file_of_a_long_step_is_small_and_covers_all_times(self):
        root, _ = self.draw(step(layers=3000, us=7))
        self.assertLess(self.svg.stat().st_size, 60_000)
        scale = (schedule_svg.WIDTH - schedule_svg.LEFT - schedule_svg.RIGHT) / (3 * 3000 + 4)
        self.assertAlmostEqual(sum(end - begin for begin, end in self.bars(root, "gather")), 3000 * scale, delta=1)

    def test_the_same_trace_gives_the_same_bytes(self):
        seen = set()
        for seed in ("1", "2"):
            os.environ["PYTHONHASHSEED"] = seed
            self.draw(step(layers=9))
            seen.add(self.svg.read_bytes())
        self.assertEqual(len(seen), 1)

    def test_each_rank_has_its_own_rows(self):
        one = span("compute", 0, 5, "fprop a")
        _, words = self.draw([{**one, "pid": pid} for pid in (10, 9)])
        self.assertLess(words.index("9 compute"), words.index("10 compute"))

    def test_bad_input_prints_one_line(self):
        good = span("gather", 1, 1, "g")
        cases = [("{", ["t.json", "line 1"]), ("[" * 100000, ["t.json"]), ("{}", ["traceEvents"]), ([7], ["traceEvents"]),
                 ({"traceEvents": []}, ["no complete event"]), ([{**good, "ts": "soon"}], ["event 0", "ts", "soon"]),
                 ([good, {**good, "dur": -1}], ["event 1", "dur", "-1"]), ('[{"ph": "X", "ts": NaN}]', ["ts", "nan"]),
                 ([{**good, "dur": 0}], ["window"])]
        for trace, expected in cases:
            result = self.run_tool(trace)
            self.refused(result, expected)
        self.refused(self.run_tool(step(), "--from-ms", 3, "--to-ms", 2), ["window", "3", "2"])
        self.refused(self.run_tool(step(), "--from-ms", 300, "--to-ms", 400), ["300", "400"])
        self.refused(self.run_tool(step(), "--from-ms", "soon"), ["--from-ms", "soon"])
        self.svg = self.svg.parent / "absent" / "t.svg"
        self.refused(self.run_tool(step()), ["absent"])

    def refused(self, result, expected):
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        for word in expected:
            self.assertIn(word, result.stderr)
        self.assertFalse(self.svg.exists())


if __name__ == "__main__":
    run_cases()
