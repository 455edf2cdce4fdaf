#!/usr/bin/env python3
"""Checks that the commands of the documents run as written, and that the links and file names in the documents exist.

A command is a line of a code block (indented or fenced) in README, CONTRIBUTING, docs/ and the READMEs of folders, or a quoted
text in a sentence, that begins with a program. Each command has one of these treatments. A command without a treatment fails.

  run      The command runs in a folder that imitates the checkout: configs/, tools/ and tests/ are links, and data/ contains
           generated tokens. The commands of README run first, because later commands use its runs. Two things differ from
           the text: $TESSERA replaces `./run tessera` and `tessera`, and the numbers of steps are smaller (SHORT_STEPS, also
           in names of checkpoints; 1 step of warm-up).
  flags    The command needs a GPU, another program, placeholders or more than a few seconds. Its subcommand and its flags must
           be in the program's --help. The command and the reason are printed.
  exists   The command is a script without such a --help. The file must exist.
"""
import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "e2e"), str(ROOT / "tools" / "lint")]

from program import TESSERA, forked, write_tokens  # noqa: E402
from sources import repository_files  # noqa: E402
from summary import run_cases  # noqa: E402

try:
    import text_corpus
    import tokenizers
except ImportError:
    tokenizers = None

LIMIT_S = 300  # of one command; the longest takes 11 s on idle cores
SHORT_STEPS = {"300": "1", "350": "2", "400": "3"}
PROGRAMS = {"tessera", "python", "python3", "pip", "git", "cmake", "ctest", "ninja", "bash", "sh", "mpirun", "srun", "torchrun",
            "scancel", "nvidia-smi", "sudo", "apt-get", "cd", "export", "curl", "xxhsum"}
SUBCOMMANDS = {"train", "generate", "evaluate", "inspect", "convert", "plan", "plot", "resume-command", "bench"}
# In sentences only these programs are checked; others are not parts of this repository.
QUOTED_PROGRAMS = {"tessera", "python", "python3"}
SOURCE = re.compile(r"^[\w./-]+\.(h|cpp|cu|cuh|py|sh|cmake|svg)$")


@dataclass(frozen=True)
class Command:
    document: str
    line: int
    text: str
    quoted: bool  # in a sentence

    def __str__(self):
        return f"{self.document}:{self.line}: {self.text}"

    def words(self):
        """Returns the words of the command, without leading variables and without the comment."""
        words = shlex.split(self.text, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        return words


def documents():
    return [path for path in repository_files(ROOT) if path.suffix == ".md"]


def documents_with_commands():
    """Returns README first, because the commands of the other documents use its runs."""
    return sorted((path for path in documents() if path.parts[0] != "tessera"), key=lambda path: (str(path) != "README.md", path))


def parts_of(text):
    """Yields (line number, text, is code) of each logical line. A backslash at the end of a code line continues it."""
    fenced, after_blank, code, number, held = False, True, False, 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*(```|~~~)", line):
            fenced, after_blank = not fenced, True
            continue
        code = fenced or (line.startswith("    ") and (after_blank or code))
        after_blank = not line.strip()
        if code and line.endswith("\\"):
            held += line[:-1].strip() + " "
            continue
        yield number, (held + line.strip()) if code else line, code
        held = ""


def is_command(text, quoted):
    try:
        words = Command("", 0, text, quoted).words()
    except ValueError:  # a missing closing quote: a drawing or an output
        return False
    if not words:
        return False
    first = words[0]
    if quoted and (len(words) == 1 or first in PROGRAMS - QUOTED_PROGRAMS):
        return False
    if first == "tessera":
        return len(words) > 1 and (words[1] in SUBCOMMANDS or not quoted)
    return first in PROGRAMS or first.startswith("./") or ("/" in first and is_program(first))


def is_program(path):
    return path.startswith((".venv/bin/", "build/")) or os.access(ROOT / path, os.X_OK) and (ROOT / path).is_file() or \
        path.endswith(".py") and (ROOT / path).is_file()


def commands_of(document, text):
    """Yields all commands. A quoted text may continue on the next line."""
    prose = ""
    lines = []
    for number, line, code in parts_of(text):
        if code:
            if is_command(line, quoted=False):
                yield Command(document, number, line, False)
            line = ""
        lines += [number] * (len(line) + 1)
        prose += line + ("\n" if line.strip() else "\n\n")
        lines += [number] * (0 if line.strip() else 1)
    for match in re.finditer(r"`([^`]+)`", prose):
        quoted = " ".join(match[1].split())
        if "\n\n" not in match[1] and is_command(quoted, quoted=True):
            yield Command(document, lines[match.start()], quoted, True)


# --- treatments -------------------------------------------------------------------------------------------------------

def is_tessera(words):
    return words[0] == "tessera" or words[0].endswith("/apps/tessera") or words[:2] == ["./run", "tessera"]


def treatment(command):
    """Returns (treatment, reason) of a command. Returns None if no rule matches."""
    words = command.words()
    if words[:2] == [".venv/bin/python", "python/prepare_text.py"] and not command.quoted and tokenizers:
        return "run", ""
    if words[0].startswith((".venv/bin/python", "python/")) or words[0] in ("python", "python3"):
        return "exists", "named in a sentence" if command.quoted else "needs a Python with other packages"
    if words[0] == "cmake":
        return "exists", "test_install.py runs it"
    for known, reason in ((command.quoted, "named in a sentence"), ("..." in words, "has a placeholder"),
                          (words[0].startswith("build/cuda/") or words[0] == "bench/compare.sh", "needs GPUs")):
        if known:
            return "flags", reason
    if is_tessera(words):
        if "--prompt" in words and not tokenizers:
            return "flags", "needs the Python package tokenizers"
        slow = [name for name in ("bench kernels", "bench step", "--dead-share") if name in command.text]
        return ("flags", "takes many seconds") if slow else ("run", "")
    if words[0] == "./run":
        return "flags", "sets up, builds or tests everything"
    if words[0] == "tools/compare/compare_commits.py":
        return ("run", "") if "--list" in words else ("flags", "builds two commits")
    if words[0] == "tests/golden/test_golden.py":
        return "exists", "writes files of the repository"
    if words[0] == "tools/schedule_svg.py":
        return "run", ""
    return None


def arguments_of(words):
    return words[2:] if words[0] == "./run" else words[1:]


def short_steps(words):
    """Returns the command with fewer training steps."""
    result = []
    for before, word in zip(["", *words], words):
        if before in ("--steps", "--schedule-steps"):
            word = SHORT_STEPS[word]
        if before == "--warmup-steps":
            word = "1"
        result.append(re.sub(r"step-(\d{8})", lambda match: f"step-{int(SHORT_STEPS[str(int(match[1]))]):08}", word))
    return result


@functools.cache
def help_of(*program):
    result = subprocess.run([*program], capture_output=True, text=True, cwd=ROOT, check=False, timeout=LIMIT_S)
    return result.stdout + result.stderr if result.returncode == 0 else ""


def help_for(words):
    if is_tessera(words):
        arguments = arguments_of(words)
        names = arguments[:2] if arguments and arguments[0] == "bench" else arguments[:1]
        return help_of(*forked([TESSERA, *[name for name in names if not name.startswith("-")], "--help"]))
    if words[0] == "./run":
        return help_of("bash", "run", "help")
    if words[0].startswith("tools/") or words[0].startswith("bench/"):
        return help_of(*([sys.executable] if words[0].endswith(".py") else ["bash"]), words[0], "--help")
    return ""


def unknown_parts(command):
    """Returns the subcommands and flags that are not in the help of the program."""
    words = command.words()
    if words[0] not in ("./run", "tessera") and not (ROOT / words[0]).is_file() and not is_tessera(words):
        return [words[0]]
    text = help_for(words)
    if not text:
        return ["--help fails"]
    if words[0] == "./run" and not is_tessera(words):
        names = [word for word in words[1:] if words[1] == "build" or word == words[1]]
        checked = [name for name in names if name != "help"] + [word for word in words[2:] if word.startswith("--") and words[1] == "test"]
    else:
        own = words[:words.index("--")] if "--" in words else words
        checked = [word.split("=")[0] for word in own if word.startswith("--")]
    return [word for word in checked if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)]


def json_block(text):
    """Returns the JSON object in a code block of a document."""
    return re.search(r"^ +\{\n.*?^ +\}$", text, re.M | re.S)[0]


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = [command for path in documents_with_commands()
                        for command in commands_of(str(path), (ROOT / path).read_text())]

    def test_each_command_has_a_treatment(self):
        self.assertGreater(len(self.commands), 60)
        self.assertEqual([str(command) for command in self.commands if treatment(command) is None], [])

    def test_commands_that_are_not_run_have_known_flags(self):
        wrong = []
        for command in self.commands:
            kind, reason = treatment(command) or ("", "")
            if kind in ("flags", "exists") and not command.quoted:
                print(f"not run ({reason}): {command}")
            if kind == "exists":
                script = next((word for word in command.words() if word.endswith(".py")), None)
                wrong += [f"{command}: the script does not exist"] if script and not (ROOT / script).is_file() else []
            if kind == "flags":
                wrong += [f"{command}: {part}" for part in unknown_parts(command)]
        self.assertEqual(wrong, [])

    def test_commands_run_as_written(self):
        folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMP")))
        self.addCleanup(shutil.rmtree, folder)
        for name in ("configs", "tools", "tests", "run", "python"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "docs").mkdir()
        (folder / "data" / "demo").mkdir(parents=True)
        for part, documents_of_part in (("train", 60), ("valid", 8)):
            write_tokens(folder / "data" / "demo" / part, 4096, documents_of_part)
        if tokenizers:
            tokenizer = text_corpus.train_tokenizer(["water and stone"], 300)
            tokenizer.save(str(folder / "data" / "demo" / "tokenizer.json"))
        (folder / "my-model").symlink_to("hf-folder")  # README exports it, with a tokenizer
        (folder / "my-small.json").write_text(json_block((ROOT / "docs" / "train-your-own.md").read_text()))
        (folder / "my-text.txt").write_text("\n\n".join(f"water and stone and water {i}\n" * 20 for i in range(60)))
        count = 0
        for command in self.commands:
            if treatment(command) != ("run", ""):
                continue
            words = short_steps(command.words())
            if is_tessera(words):
                words = forked([TESSERA, *arguments_of(words)])
            if words[0] == ".venv/bin/python":
                words[0] = sys.executable
            with self.subTest(command=str(command)):
                result = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False, timeout=LIMIT_S)
                self.assertEqual(result.returncode, 0, f"{command}\n{result.stdout[-500:]}{result.stderr[-1500:]}")
                count += 1
        self.assertGreater(count, 15)
        # Predicted times may move bars, so only the labels are compared.
        self.assertEqual(*(sorted(re.findall(r"<text[^>]*>([^<]*)", (root / "docs" / "schedule.svg").read_text()))
                           for root in (folder, ROOT)), "docs/schedule.svg differs from the drawing of the commands in docs/schedule.md")


class Extraction(unittest.TestCase):
    def commands(self, text):
        return [command.text for command in commands_of("x.md", text)]

    def test_blocks_fences_continuations_and_quotes_are_found(self):
        text = ("Text `tessera plan --x` and `./run\nlint` and `tessera` alone.\n\n    ./run a  # why\n    ./run tessera plan --b \\\n"
                "        --c\n\n```\npython3 d.py\n```\n    not after a blank line\n\n    a picture | of\n")
        self.assertEqual(self.commands(text), ["./run a  # why", "./run tessera plan --b --c", "python3 d.py",
                                               "tessera plan --x", "./run lint"])

    def test_unknown_programs_and_flags_are_found(self):
        unknown, flag = Command("x.md", 1, "ninja all", False), Command("x.md", 1, "build/cuda/apps/tessera plan --nothing 3", False)
        self.assertIsNone(treatment(unknown))
        self.assertEqual(unknown_parts(flag), ["--nothing"])
        self.assertEqual(unknown_parts(Command("x.md", 1, "./run nothing", False)), ["nothing"])


class Links(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = {str(path) for path in repository_files(ROOT)}
        cls.names = {pathlib.PurePosixPath(name).name for name in cls.files}

    @staticmethod
    def anchors(path):
        headings = re.findall(r"(?m)^#+ +(.*)$", path.read_text())
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    def test_links_between_documents_and_to_files_exist(self):
        broken = []
        for document in documents():
            for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", (ROOT / document).read_text()):
                if re.match(r"[a-z]+:", target):
                    continue
                path = (ROOT / document).parent / target if target else ROOT / document
                if not path.exists() or anchor and anchor not in self.anchors(path):
                    broken.append(f"{document}: {target}#{anchor}")
        self.assertEqual(broken, [])

    def test_quoted_files_exist(self):
        missing = []
        for document in documents():
            for name in re.findall(r"`([^`\s]+)`", (ROOT / document).read_text()):
                is_placeholder = re.search(r"[A-Z]", name) and not name.endswith(".cmake")
                if SOURCE.match(name) and not is_placeholder and not self.exists(name, document):
                    missing.append(f"{document}: {name}")
        self.assertEqual(missing, [])

    def exists(self, name, document):
        """Searches a path in the root, tessera/, tests/, the folder of the document and its parent; searches a name everywhere."""
        if "/" not in name:
            return name in self.names
        folders = ("", "tessera", "tests", str(document.parent), str(document.parent.parent))
        return any(os.path.normpath(os.path.join(folder, name)) in self.files for folder in folders)


if __name__ == "__main__":
    run_cases()
