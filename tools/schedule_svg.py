#!/usr/bin/env python3
"""Draws a step from a trace file (Chrome's trace-event format, as `tessera plan --trace FILE` writes it) as an SVG.

The drawing has a row for each lane and a colour for each kind of work. Time runs from left to right. The passes of the step
are shaded behind the rows if the names of the spans contain them. Adjacent spans of one kind that are too narrow to see are
drawn as a single mark. The same trace gives the same bytes. The colours have medium brightness and the background is
transparent, so that the
drawing can be read on white and on black.
"""
import argparse
import json
import math
import pathlib
import re
import sys
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 1000, 76, 12, 58  # pixels
ROW, BAR = 72, 60
LETTER, LINE = 5.4, 11  # approximate width of a letter and height of a line
NARROW = 1.5  # a narrower mark is joined with a neighbour that is less than a pixel away
INK = "#808080"
COLOURS = {"forward": "#4c8dd6", "recompute": "#35a3a8", "backward": "#8f78d8", "optimizer": "#c98a2b", "compute": "#7d93ab",
           "gather": "#3aa65c", "reduce": "#d9603f", "replicas": "#cf5c93", "program": "#5a9e9e", "publish": "#a06a45", "comm": "#5a9e9e",
           "wait": "#c9b04a", "other": "#9a9a9a"}
PASSES = ("forward", "recompute", "backward", "optimizer")


class BadTrace(Exception):
    pass


@dataclass
class Span:
    begin: float  # ms
    end: float
    name: str
    before: str  # the event that follows this span, or empty if the trace does not contain it
    weights: list
    kind: str = "other"


@dataclass
class Row:
    name: str
    spans: list = field(default_factory=list)


def number(event, key, index):
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadTrace(f"event {index}: '{key}' is {value!r}, expected a number of microseconds")
    return value


def read_span(event, index):
    begin, duration = number(event, "ts", index) / 1e3, number(event, "dur", index) / 1e3
    if duration < 0:
        raise BadTrace(f"event {index}: 'dur' is {event['dur']!r}, expected 0 or more")
    details = event.get("args")
    details = details if isinstance(details, dict) else {}
    weights = details.get("weights")
    weights = [str(weight) for weight in weights] if isinstance(weights, list) else []
    return Span(begin, begin + duration, str(event.get("name", "")), str(details.get("before") or details.get("pass") or ""),
                weights)


def read_rows(text):
    """Returns the lanes in the order of their numbers. The lanes of each process (rank) follow those of the process before."""
    trace = json.loads(text)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise BadTrace("expected a list 'traceEvents' of objects")
    rows, names, processes = {}, {}, {}
    for index, event in enumerate(events):
        place = (str(event.get("pid", 0)), str(event.get("tid", 0)))
        details = event.get("args")
        if event.get("ph") == "M" and isinstance(details, dict):
            if event.get("name") == "thread_name":
                names[place] = str(details.get("name"))
            if event.get("name") == "process_name":
                processes[place[0]] = str(details.get("name"))
        if event.get("ph") == "X":
            rows.setdefault(place, []).append((str(event.get("cat", "")), read_span(event, index)))
    if not rows:
        raise BadTrace("contains no complete event ('ph': 'X'), expected the spans of a step")
    several = len({pid for pid, _ in rows}) > 1
    found = []
    for pid, tid in sorted(rows, key=lambda place: [(len(part), part) for part in place]):
        lane = names.get((pid, tid)) or rows[pid, tid][0][0] or f"lane {tid}"
        spans = sorted(rows[pid, tid], key=lambda entry: entry[1].begin)
        found.append(Row(f"{processes.get(pid, pid)} {lane}" if several else lane, set_kinds(spans)))
    return found


def set_kinds(entries):
    """Sets the kind of each span. A compute span has the kind of its pass; if no pass is known, the previous pass continues."""
    told = [pass_of(span) if category == "compute" else "" for category, span in entries]
    current = next((each for each in told if each), "compute")
    for (category, span), each in zip(entries, told):
        current = each or current
        first = re.split(r"\W|_", category)[0]  # "gather" for "gather over compute"
        span.kind = current if category == "compute" else first if first in COLOURS else "other"
    return [span for _, span in entries]


def pass_of(span):
    words = f"{span.before} {span.name}".split()
    if "publish" in words or span.name.startswith(("update ", "adamw ")):  # adamw: traces of older plans
        return "optimizer"
    for each in ("backward", "recompute", "forward"):
        if each in words:
            return each
    return {"fprop": "forward", "dgrad": "backward", "wgrad": "backward"}.get(words[0] if words else "", "")


def short(weight):
    """Shortens a name: layers.3.mlp.gate_up.weight becomes 3.gate_up."""
    return re.sub(r"^layers\.(\d+)\.(?:.*\.)?([^.]+)$", r"\1.\2", re.sub(r"\.weight$", "", weight))


def labels(span):
    """Returns possible labels of a span, the longest first."""
    if span.weights:
        first, others = short(span.weights[0]), len(span.weights) - 1
        return [f"{first} +{others}", f"{first}+"] if others else [first]
    words = span.name.split() or [""]
    return [" ".join(map(short, words)), short(next((word for word in words if "." in word), words[0]))]


class Drawing:
    def __init__(self, begin, end):
        self.begin, self.scale = begin, (WIDTH - LEFT - RIGHT) / (end - begin)
        self.lines = []

    def x(self, time):
        return LEFT + (time - self.begin) * self.scale

    def text(self, x, y, words, attributes=""):
        clean = "".join(letter if letter.isprintable() else "?" for letter in words)
        self.lines.append(f'<text x="{trim(x)}" y="{trim(y)}"{attributes}>{escape(clean)}</text>')

    def axis(self, bottom):
        step = 10 ** math.floor(math.log10(80 / self.scale))
        step *= next(factor for factor in (1, 2, 5, 10) if factor * step * self.scale >= 80)
        first = math.ceil(self.begin / step)
        digits = max(0, -math.floor(math.log10(step)))
        last = (WIDTH - RIGHT - LEFT) / self.scale + self.begin
        ticks = [tick * step for tick in range(first, math.floor(last / step + 1e-9) + 1)]
        path = "".join(f"M{trim(self.x(tick))} {TOP}V{bottom}" for tick in ticks)
        self.lines.append(f'<path d="{path}" stroke="{INK}" stroke-opacity=".35"/>')
        for tick in ticks:
            self.text(self.x(tick), bottom + 14, f"{tick:.{digits}f}", ' text-anchor="middle"')
        self.text(4, bottom + 14, "ms")

    def shading(self, row, bottom):
        """Shades a band behind each run of successive spans of one pass."""
        bands = []
        for span in row.spans:
            if span.kind in PASSES and bands and bands[-1][0] == span.kind:
                bands[-1][2] = span.end
            elif span.kind in PASSES:
                bands.append([span.kind, span.begin, span.end])
        for kind, begin, end in bands:
            x, width = self.x(begin), (end - begin) * self.scale
            if width < NARROW:
                continue
            self.lines.append(f'<rect x="{trim(x)}" y="{TOP - 14}" width="{trim(width)}" height="{bottom - TOP + 14}" '
                              f'fill="{COLOURS[kind]}" fill-opacity=".1"/>')
            if width > len(kind) * LETTER + 8:
                self.text(x + 4, TOP - 4, kind)

    def row(self, row, y):
        self.text(4, y + BAR / 2 + 4, row.name)
        paths, written = {}, []
        for mark in joined([[span.kind, self.x(span.begin), self.x(span.end)] for span in row.spans]):
            kind, begin, end = mark
            width = max(end - begin - (0.4 if end - begin > 3 else 0), 0.5)  # a seam between neighbours
            paths.setdefault(kind, []).append(f"M{trim(begin)} {y}h{trim(width)}v{BAR}h-{trim(width)}z")
        for span in row.spans:
            width, middle = (span.end - span.begin) * self.scale, self.x((span.begin + span.end) / 2)
            across = [words for words in labels(span) if len(words) * LETTER <= width - 4]
            upright = [words for words in labels(span) if len(words) * LETTER <= BAR - 4 and width >= LINE]
            if across or upright:
                written.append((middle, (across or upright)[0], not across))
        for kind, parts in sorted(paths.items()):
            self.lines.append(f'<path d="{"".join(parts)}" fill="{COLOURS[kind]}"/>')
        self.lines.append('<g fill="#fff" font-size="9.5" text-anchor="middle">')
        for x, words, turned in written:
            place = (x + 3.5, y + BAR / 2)
            turn = f' transform="rotate(-90 {trim(place[0])} {trim(place[1])})"' if turned else ""
            self.text(*(place if turned else (x, y + BAR / 2 + 3.5)), words, turn)
        self.lines.append("</g>")


def trim(value):
    return f"{value:.1f}".removesuffix(".0")


def joined(marks):
    """Joins narrow marks of one row and one kind that are less than a pixel apart."""
    found = []
    for mark in marks:
        last = found[-1] if found else None
        near = last and last[0] == mark[0] and mark[1] - last[2] < 1
        if near and min(last[2] - last[1], mark[2] - mark[1]) < NARROW:
            last[2] = max(last[2], mark[2])
        else:
            found.append(mark)
    return found


def clipped(rows, begin, end):
    """Returns the rows with their spans cut to the window. Rows without a span in the window are kept."""
    for row in rows:
        row.spans = [span for span in row.spans if span.end > begin and span.begin < end]
        for span in row.spans:
            span.begin, span.end = max(span.begin, begin), min(span.end, end)
    if not any(row.spans for row in rows):
        raise BadTrace(f"contains no span between {begin:g} and {end:g} ms")
    return rows


def draw(rows, title, begin, end):
    bottom = TOP + ROW * len(rows)
    drawing = Drawing(begin, end)
    drawing.text(4, 16, title, ' font-size="14"')
    kinds = [kind for kind in COLOURS if any(span.kind == kind for row in rows for span in row.spans)]
    x = LEFT
    for kind in kinds:
        drawing.lines.append(f'<rect x="{trim(x)}" y="24" width="10" height="10" fill="{COLOURS[kind]}"/>')
        drawing.text(x + 14, 33, kind)
        x += 30 + len(kind) * 6.5
    compute = next((row for row in rows if any(span.kind in PASSES for span in row.spans)), None)
    if compute:
        drawing.shading(compute, bottom)
    drawing.axis(bottom)
    for index, row in enumerate(rows):
        drawing.row(row, TOP + ROW * index + (ROW - BAR) // 2)
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 22}" width="{WIDTH}" '
            f'height="{bottom + 22}" font-family="sans-serif" font-size="11" fill="{INK}">')
    return "\n".join([head, *drawing.lines, "</svg>"]) + "\n"


class Arguments(argparse.ArgumentParser):
    def error(self, message):
        raise BadTrace(f"{message} (see --help)")


def parse(arguments):
    parser = Arguments(prog="schedule_svg.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("trace", help="JSON file, as `tessera plan --trace` writes it")
    parser.add_argument("svg", help="file to write")
    parser.add_argument("--from-ms", type=float, help="begin of the window (default: begin of the trace)")
    parser.add_argument("--to-ms", type=float, help="end of the window (default: end of the trace)")
    parser.add_argument("--title", help="line above the drawing (default: file name of the trace)")
    return parser.parse_args(arguments)


def main(arguments):
    where = "schedule_svg.py"
    try:
        options = parse(arguments)
        where = options.trace
        rows = read_rows(pathlib.Path(where).read_text(encoding="utf-8"))
        begin = min(span.begin for row in rows for span in row.spans) if options.from_ms is None else options.from_ms
        end = max(span.end for row in rows for span in row.spans) if options.to_ms is None else options.to_ms
        if not (math.isfinite(begin) and math.isfinite(end) and end - begin >= 1e-6):
            raise BadTrace(f"the window from {begin:g} to {end:g} ms is empty, expected an end after the begin")
        text = draw(clipped(rows, begin, end), options.title or pathlib.Path(where).stem, begin, end)
        where = options.svg
        pathlib.Path(where).write_text(text, encoding="utf-8")
    except RecursionError:
        print(f"{where}: the JSON is nested too deeply for a trace", file=sys.stderr)
        return 2
    except (BadTrace, OSError, ValueError) as reason:
        words = getattr(reason, "strerror", None) or " ".join(str(reason).split())
        print(f"{where}: {words}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
