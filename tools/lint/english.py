"""Refuses wording that is hard to read, in comments, documents, messages and names.

english_patterns.json contains the patterns. Each pattern has a correction (`instead`) and an example that it matches. A pattern is a
regular expression that ignores case. With "at": "start of a sentence" it matches only there and respects case. With "at":
"code" it matches names in C++ code and respects case.
"""
import io
import json
import pathlib
import re
import tokenize
from dataclasses import dataclass

from passed import Passed
from sources import CPP, Finding, read

TABLE = pathlib.PurePosixPath("tools/lint/english_patterns.json")
# These files contain the examples of the patterns.
EXEMPT = {TABLE, pathlib.PurePosixPath("tests/tools/test_lint.py")}
START = r"(?:^|(?<=[.!?:] ))"
CPP_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | R"(?P<tag>[^()\s\\]{0,16})\((?P<raw>.*?)\)(?P=tag)"
      | "(?P<string>(?:\\.|[^"\\\n])*)"
      | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'
    """, re.VERBOSE | re.DOTALL)
HASH_COMMENT = re.compile(r"(?:^|\s)#(?!!)(.*)$")
QUOTED = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^\s*(```|~~~)")
SYSTEM_TEXT = "No such file or directory"  # a message of the operating system, which string literals may quote


@dataclass(frozen=True)
class Piece:
    """The text of one line. Successive pieces of one kind are joined to one text."""
    line: int
    kind: str
    text: str
    joins: bool  # whether it may continue a piece of the line above
    column: int = 0  # column of a C++ comment; a comment continues only a comment that begins in the same column


def cpp_pieces(text):
    for match in CPP_TOKEN.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        before = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
        if match["comment"] is not None:
            body = match["comment"].removeprefix("/*").removesuffix("*/")
            for number, part in enumerate(body.split("\n")):
                yield Piece(line + number, "comment", part.lstrip("/* ").strip(), not before.strip() or number > 0,
                            len(before))
        elif match["raw"] is not None:
            for number, part in enumerate(match["raw"].split("\n")):
                yield Piece(line + number, "string", part, False)
        elif match["string"] is not None and not before.lstrip().startswith("#include"):
            yield Piece(line, "string", match["string"], not before.strip())


def python_pieces(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            whole = not token.line[:token.start[1]].strip()
            yield Piece(line, "comment", token.string.lstrip("#! "), whole)
        elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            body = token.string.strip("rbfu").strip("\"'") if token.type == tokenize.STRING else token.string
            for number, part in enumerate(body.split("\n")):
                yield Piece(line + number, "string", part.strip(), number > 0)


def hash_pieces(text):
    for number, line in enumerate(text.split("\n"), 1):
        match = HASH_COMMENT.search(line)
        if match:
            yield Piece(number, "comment", match[1].strip(), not line[:match.start()].strip())


def markdown_pieces(text):
    in_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code and not line.startswith("    "):
            ends = not line.strip() or re.match(r"\s*([-*|#>]|\d+\.)", line)
            yield Piece(number, "text", line.strip().lstrip("-*#> "), not ends)


def pieces_of(path, text):
    if path.suffix in CPP:
        return cpp_pieces(text)
    if path.suffix == ".py":
        return python_pieces(text)
    if path.suffix == ".md":
        return markdown_pieces(text)
    if path.suffix in (".sh", ".cmake") or path.name in ("CMakeLists.txt", "run"):
        return hash_pieces(text)
    return ()


def texts_of(path, text):
    """Yields (text, line number of each character) for each run of joined pieces. SYSTEM_TEXT in string literals is blanked."""
    whole, lines, last = "", [], None
    for piece in pieces_of(path, text):
        follows = (last is not None and piece.joins and piece.kind == last.kind and piece.line <= last.line + 1
                   and piece.column == last.column)
        if not follows and whole:
            yield whole, lines
            whole, lines = "", []
        text = piece.text.replace(SYSTEM_TEXT, "x" * len(SYSTEM_TEXT)) if piece.kind == "string" else piece.text
        addition = (" " if whole and not whole.endswith(" ") else "") + text
        whole += addition
        lines += [piece.line] * len(addition)
        last = piece
    if whole:
        yield whole, lines


def blank_quoted(text):
    return QUOTED.sub(lambda match: "x" * len(match[0]), text)


def load(table):
    rows = []
    for row in json.loads(table):
        at = row.get("at")
        rows.append((at, re.compile(START + row["pattern"] if at == "start of a sentence" else row["pattern"],
                                    0 if at else re.IGNORECASE), row["instead"]))
    return rows


def findings_in(path, text, rows):
    found = set()
    for body, lines in texts_of(path, text):
        body = blank_quoted(body)
        for at, pattern, instead in rows:
            for match in pattern.finditer(body) if at != "code" else ():
                found.add((lines[min(match.start(), len(lines) - 1)], match[0].strip(), instead))
    for at, pattern, instead in rows:
        for match in pattern.finditer(text) if at == "code" and path.suffix in CPP else ():
            found.add((text.count("\n", 0, match.start()) + 1, match[0], instead))
    return [Finding(str(path), line, f"'{words}': write instead: {instead}") for line, words, instead in sorted(found)]


def check(root, files, _options):
    here = pathlib.Path(__file__)
    table = (here.parent / TABLE.name).read_bytes()
    passed = Passed(root, "english", here.read_bytes(), table)
    rows, findings = load(table), []
    for path in passed.changed([path for path in files if path not in EXEMPT]):
        findings += findings_in(path, read(root, path), rows)
    passed.store(findings)
    return findings
