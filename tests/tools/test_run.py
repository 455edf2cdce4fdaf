#!/usr/bin/env python3
"""Tests `./run train` and `./run tessera` with a fake program: the commands that they call, their output, and signals."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The fake program writes its arguments. If the file `wait` exists, it runs until a signal requests a stop.
PROGRAM = """#!/usr/bin/env python3
import json, os, pathlib, signal, sys, time
root = pathlib.Path(__file__).resolve().parents[3]
(root / "arguments").write_text(json.dumps(sys.argv[1:]))
if "--help" in sys.argv:
    print("the program's help")
    sys.exit(0)
asked = []
if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: asked.append(number))
(root / "is-running").write_text("")
for _ in range(1000 if (root / "wait").exists() else 0):
    if asked:
        break
    time.sleep(0.01)
if asked:
    time.sleep(0.3)
code = int((root / "code").read_text()) if (root / "code").exists() else 0
if code == 0:
    out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
    out.mkdir(parents=True, exist_ok=True)
    (out / "summary.json").write_text(json.dumps({"interrupted": bool(asked)}))
    if asked:
        print("to resume:\\n  the command")
sys.exit(code)
"""
CMAKE = """#!/usr/bin/env python3
import pathlib, sys
print("[0/2] Re-checking globbed directories...")
if pathlib.Path("work").exists():
    print("[1/1] Building everything")
else:
    print("ninja: no work to do.")
"""


def setUpModule():
    """Restores SIGINT. A shell starts background processes with SIGINT ignored, and child processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Checkout(unittest.TestCase):
    """A checkout with the real scripts, a fake program and a fake cmake."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)
        shutil.copytree(ROOT / "tools" / "run", self.root / "tools" / "run")
        shutil.copy(ROOT / "run", self.root / "run")
        shutil.copy(ROOT / "CMakePresets.json", self.root / "CMakePresets.json")
        self.put("build/cpu/apps/tessera", PROGRAM)
        self.put("cmake", CMAKE)
        self.put("tools/run/setup.sh", f'setup() {{ PYTHON={sys.executable} CMAKE="$ROOT/cmake" TESSERA_TORCH=none; }}\n')
        self.put("tools/run/report.py", 'import sys\nprint("report of", sys.argv[1])\n')
        self.put("data/demo/meta.json", "{}")
        self.put("build/cpu/build.ninja", "")
        self.call("build")  # configures the build
        (self.root / "arguments").unlink(missing_ok=True)

    def put(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def call(self, *arguments):
        return subprocess.run([str(self.root / "run"), *arguments], capture_output=True, text=True, check=False, timeout=60)

    def arguments(self):
        return json.loads((self.root / "arguments").read_text())

    def value(self, flag):
        words = self.arguments()
        return words[words.index(flag) + 1] if flag in words else None


class Train(Checkout):
    def train(self, *arguments, code=0):
        result = self.call("train", *arguments)
        self.assertEqual(code, result.returncode, result.stdout + result.stderr)
        return result

    def test_a_new_run_uses_the_flags_of_the_demo_and_a_free_folder(self):
        self.assertIn("report of runs/demo\n", self.train().stdout)
        self.assertEqual(("llama-demo", "4", "300", "30", "runs/demo"),
                         tuple(map(self.value, ("--model", "--ranks", "--steps", "--warmup-steps", "--out"))))
        self.train("--tp", "1", "--lr=1e-3")
        self.assertEqual((None, "2", "1", "runs/demo-2"), tuple(map(self.value, ("--ranks", "--gtp", "--tp", "--out"))))
        self.assertEqual(1, sum(word.startswith("--lr") for word in self.arguments()))

    def test_a_model_with_experts_has_a_mesh_of_its_own(self):
        axes = ("--ranks", "--tp", "--gtp", "--ep", "--egtp")
        for flags, mesh in (((), ("4", "1", "4", "2", "2")), (("--ep", "4"), ("4", "1", "4", "4", None)),
                            (("--egtp=4",), ("4", "1", "4", None, None)), (("--gtp", "2"), (None, "1", "2", None, None))):
            self.train("--model", "mixtral-demo", *flags)
            self.assertEqual(mesh, tuple(map(self.value, axes)), flags)

    def test_help_shows_the_flags_of_the_program_and_of_the_demo(self):
        for flag in ("--help", "-h"):
            result = self.train(flag)
            self.assertIn("the program's help", result.stdout)
            self.assertIn("--model llama-demo", result.stdout)
            self.assertIn("With --model mixtral-demo, the flags of the mesh are --ranks 4 --tp 1 --gtp 4 --ep 2 --egtp 2.\n", result.stdout)
            self.assertEqual("", result.stderr)
            self.assertFalse((self.root / "runs").exists())

    def test_a_short_run_has_a_short_warm_up(self):
        for flags, warmup in ((("--steps", "3"), "0"), (("--steps=40",), "4"), (("--steps", "3", "--schedule-steps", "600"), "30"),
                              (("--steps", "3", "--warmup-steps", "2"), "2"), (("--steps", "x"), "30")):
            self.train(*flags)
            self.assertEqual(warmup, self.value("--warmup-steps"), flags)

    def test_a_resumed_run_passes_no_flags_of_the_demo(self):
        self.train("--resume", "runs/a/checkpoints/step-00000003", "--out", "runs/b", "--steps", "40")
        self.assertEqual(["train", "--resume", "runs/a/checkpoints/step-00000003", "--out", "runs/b", "--steps", "40"],
                         self.arguments())

    def test_resume_latest_resumes_the_last_run(self):
        result = self.train("--resume", "latest", code=2)
        self.assertIn("--out", result.stderr)
        self.assertFalse((self.root / "arguments").exists())
        for _ in range(2):
            self.train()
        for flags in (("--resume", "latest", "--steps", "400"), ("--resume=latest", "--steps", "400")):
            self.train(*flags)
            self.assertEqual(["train", *flags, "--out", "runs/demo-2"], self.arguments())
        self.assertFalse((self.root / "runs/demo-3").exists())

    def test_resume_latest_resumes_the_newest_run(self):
        """The newest run may not have the highest number, because the folder of an earlier run may have been removed."""
        for _ in range(3):
            self.train()
        shutil.rmtree(self.root / "runs/demo")
        self.train()
        self.assertEqual("runs/demo", self.value("--out"))
        self.train("--resume", "latest")
        self.assertEqual("runs/demo", self.value("--out"))
        shutil.rmtree(self.root / "runs/demo")
        self.train("--resume", "latest")
        self.assertEqual("runs/demo-3", self.value("--out"))

    def test_init_replaces_the_model(self):
        for flags in (("--init", "folder"), ("--init=folder",)):
            self.train(*flags)
            self.assertIsNone(self.value("--model"))
            self.assertEqual("data/demo/train", self.value("--data"))

    def test_a_refused_run_prints_no_missing_folder(self):
        (self.root / "code").write_text("2")
        result = self.train(code=2)
        self.assertNotIn("runs/demo", result.stderr)
        self.assertNotIn("report", result.stdout)
        (self.root / "runs/demo").mkdir(parents=True)
        self.assertIn("runs/demo", self.train("--out", "runs/demo", code=2).stderr)


class SignalledTrain(Checkout):
    def start(self, **how):
        (self.root / "wait").write_text("")
        program = subprocess.Popen([str(self.root / "run"), "train"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True, **how)
        self.addCleanup(lambda: program.poll() is None and os.killpg(program.pid, signal.SIGKILL))
        end = time.monotonic() + 60
        while not (self.root / "is-running").exists():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        return program

    def test_a_signal_to_the_script_reaches_the_program(self):
        for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            program = self.start()
            program.send_signal(sent)
            output, errors = program.communicate(timeout=60)
            self.assertEqual((0, ""), (program.returncode, errors))
            self.assertTrue(output.endswith("to resume:\n  the command\n"), output)
            self.assertIn("true", (self.root / self.value("--out") / "summary.json").read_text())
            (self.root / "is-running").unlink()

    def test_a_signal_of_a_terminal_to_the_group_stops_once(self):
        program = self.start()
        os.killpg(program.pid, signal.SIGINT)
        output, errors = program.communicate(timeout=60)
        self.assertEqual((0, ""), (program.returncode, errors))
        self.assertTrue(output.endswith("to resume:\n  the command\n"), output)
        self.assertIn("true", (self.root / "runs/demo/summary.json").read_text())


class Program(Checkout):
    def test_a_build_without_work_prints_nothing(self):
        result = self.call("tessera", "--help")
        self.assertEqual((0, "the program's help\n", ""), (result.returncode, result.stdout, result.stderr))

    def test_a_build_prints_its_work_on_stderr(self):
        (self.root / "work").write_text("")
        result = self.call("tessera", "--help")
        self.assertEqual((0, "the program's help\n"), (result.returncode, result.stdout))
        self.assertEqual("[run] building cpu: tessera\n[1/1] Building everything\n", result.stderr)

    def test_a_line_of_a_build_appears_before_the_build_ends(self):
        self.put("cmake", """#!/bin/sh
            echo '[1/2] Building one file'
            for i in $(seq 200); do [ -e finish ] && echo '[2/2] Linking' && exit; sleep 0.05; done
            echo 'no one has read the first line'""")
        with subprocess.Popen([str(self.root / "run"), "tessera", "--help"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True) as program:
            seen = [program.stderr.readline() for _ in range(2)]
            (self.root / "finish").write_text("")
            seen.append(program.stderr.read())
        self.assertEqual(["[run] building cpu: tessera\n", "[1/2] Building one file\n", "[2/2] Linking\n"], seen)
        self.assertEqual(0, program.returncode)

    def test_a_failed_build_ends_the_command(self):
        self.put("cmake", "#!/bin/sh\necho 'error: missing file'\nexit 1\n")
        result = self.call("tessera", "--help")
        self.assertEqual((1, ""), (result.returncode, result.stdout))
        self.assertIn("error: missing file", result.stderr)
        self.assertIn("building cpu failed", result.stderr)


if __name__ == "__main__":
    run_cases()
