#!/usr/bin/env python3
"""A failure ends all ranks soon, with one clear line. Bad input prints one line and writes nothing."""
import functools
import json
import os
import re
import signal
import subprocess
import time
import unittest

from program import ENVIRONMENT, MPIRUN, ROOT, command, forked, programs_with, run, scratch, tessera, write_tokens
from summary import run_cases

FULL = os.environ.get("TESSERA_E2E") == "full"
LIMIT_S = 4


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("bad-input")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.config = json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text())

    def refused(self, *flags, expect, out=None, given=("--model", "--data", "--steps", "--seq-len")):
        """Checks that the run exits with code 2, prints one line with every expected word, and writes nothing."""
        defaults = {"--model": "llama-tiny-odd", "--data": self.data, "--steps": 2, "--seq-len": 32}
        target = out or self.folder / "refused"
        arguments = [word for flag in given if flag not in flags for word in (flag, defaults[flag])]
        result = run("train", *arguments, *flags, "--out", target)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for word in expect:
            self.assertIn(str(word), result.stderr)
        if out is None:
            self.assertFalse(target.exists())

    def model(self, **changes):
        path = self.folder / "model.json"
        path.write_text(json.dumps({key: value for key, value in {**self.config, **changes}.items() if value is not None}))
        return path

    def test_flags(self):
        self.refused("--frobnicate", 3, expect=["--frobnicate"])
        self.refused("--steps", "many", expect=["--steps", "many"])
        self.refused("--lr", -1, expect=["--lr", "-1"])
        self.refused("--dtype", "fp7", expect=["--dtype", "fp7"])
        self.refused("--pp", 2, expect=["--pp"])
        self.refused(given=("--model", "--data", "--seq-len"), expect=["--steps"])

    def test_config_file(self):
        path = self.folder / "settings.json"
        path.write_text('{"learning_rate": 1}')
        self.refused("--config", path, expect=[path, "learning_rate"])
        path.write_text('{"lr": ')
        self.refused("--config", path, expect=[path])

    def test_mesh(self):
        self.refused("--ranks", 3, "--tp", 2, "--gtp", 2, "--dp", 2, expect=["--ranks", 3, 8])
        self.refused("--ranks", 3, "--gtp", 2, expect=["--ranks", 3])
        self.refused("--gtp", 2, "--global-batch", 7, expect=["--global-batch", 7])
        self.refused("--tp", 0, expect=["--tp", 0])

    def test_model(self):
        self.refused("--model", "unknown-model", expect=["unknown-model", "llama-demo"])
        self.refused("--model", self.model(hidden_size=None), expect=["model.json", "hidden_size"])
        self.refused("--model", self.model(hidden_size="big"), expect=["hidden_size", "big"])
        self.refused("--model", self.model(architectures=["GPT2LMHeadModel"], model_type="gpt2"),
                     expect=["model_type", "gpt2", "llama", "qwen3"])
        self.refused("--model", self.model(vocab_size=100), expect=["tokens.bin", "vocab_size 100"])

    def test_data(self):
        whole = {suffix: (self.folder / f"tokens.{suffix}").read_bytes() for suffix in ("bin", "idx")}
        for suffix, kept in (("idx", 10), ("idx", 200), ("bin", 50)):
            for other, content in whole.items():
                (self.folder / f"cut.{other}").write_bytes(content[:kept] if other == suffix else content)
            self.refused("--data", self.folder / "cut", expect=[f"cut.{suffix}"])
        for suffix in whole:
            (self.folder / f"foreign.{suffix}").write_bytes(b"\x7fELF" + bytes(range(256)) * 20)
        self.refused("--data", self.folder / "foreign", expect=["foreign.idx"])
        self.refused("--data", self.folder / "absent", expect=["absent"])
        self.refused("--model", self.model(max_position_embeddings=10**6), "--seq-len", 500000, expect=["--seq-len", 500000])

    def test_out(self):
        self.refused(out="/proc/tessera-run", expect=["/proc/tessera-run"])
        file = self.folder / "file"
        file.write_text("")
        self.refused(out=file, expect=[file])
        self.refused(out=file / "below", expect=[file])
        other = self.folder / "other"
        tessera("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 32, "--steps", 0, "--out", other)
        before = sorted(str(path) for path in other.rglob("*"))
        self.refused(out=other, expect=[other, "another run"])
        self.assertEqual(before, sorted(str(path) for path in other.rglob("*")))

    def test_a_damaged_checkpoint(self):
        out = self.folder / "damaged"
        tessera("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 32, "--steps", 2, "--save-every", 1,
                "--out", out)
        first = out / "checkpoints" / "step-00000001"
        part = sorted(first.glob("*.safetensors"))[0]
        content = bytearray(part.read_bytes())
        content[-5] ^= 1
        part.write_bytes(content)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        self.refused("--resume", first, expect=[part.name], out=out)
        self.assertEqual(before, {path: path.read_bytes() for path in out.rglob("*") if path.is_file()})
        self.refused("--resume", first, expect=[part.name])

    def test_two_runs_in_one_folder(self):
        out = self.folder / "shared"
        start = ["train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 32, "--steps", 10**6, "--out", out]
        with subprocess.Popen(forked(command(*start)), stdout=subprocess.DEVNULL) as job:
            try:
                for _ in range(300):
                    if (out / "metrics.jsonl").exists():
                        break
                    time.sleep(0.1)
                self.refused("--resume", "latest", expect=["another process"], out=out)
            finally:
                job.kill()

    def test_benchmarks(self):
        step = ["step", "--model", "llama-tiny-odd", "--seq-len", 16, "--backend"]
        for flags, word in (([*step, "local", "--cuda-graph"], "--cuda-graph"), ([*step, "local", "--layers", 0], "--layers"),
                            ([*step, "local", "--layers", 10**15], "--layers"), ([*step, "local", "--gtp", 2000], "--ranks"),
                            ([*step, "mpi"], "--backend"), (["kernels", "--dtype", "i32"], "--dtype"),
                            (["kernels", "--only", "unknown-kernel"], "unknown-kernel"),
                            (["products", "--tp", 0], "--tp"), (["products", "--tokens", -1], "--tokens"),
                            (["products", "--candidates", 65], "--candidates"),
                            (["products", "--repetitions", 0], "--repetitions"), (["products", "--seconds", -1], "--seconds"),
                            (["links", "--rounds", 0], "--rounds"), ([*step, "local", "--steps", 0], "--steps"),
                            ([*step, "local", "--warmup", -1], "--warmup")):
            with self.subTest(flags):
                self.refused_line(run("bench", *flags, timeout=60), word)
        report = json.loads(tessera("bench", *step, "local", "--layers", 1, "--steps", 1, "--json"))
        self.assertEqual((1, ""), (report["layers"], report["transport"]))
        if MPIRUN:
            result = run("bench", *step, "local", mpi_ranks=2)
            self.assertEqual(2, result.returncode)
            self.assertIn("tessera: --backend: got local, expected nccl", result.stderr)
        started = {**ENVIRONMENT, "RANK": "0", "WORLD_SIZE": "4"}
        self.refused_line(subprocess.run(command("bench", *step, "nccl", "--gtp", 2), capture_output=True, text=True, check=False,
                                         env=started, timeout=60), "--tp 1 --gtp 2 --dp 1: 2 ranks, expected 4")

    def test_a_benchmark_of_skipped_steps_reports_no_figure(self):
        model = self.folder / "huge-weights.json"
        model.write_text(json.dumps(self.config | {"initializer_range": 1e37}))
        result = run("bench", "step", "--model", model, "--seq-len", 16, "--gtp", 2, "--backend", "local", "--json", timeout=60)
        self.assertEqual((1, "", 1), (result.returncode, result.stdout, len(result.stderr.splitlines())), result.stderr)
        self.assertIn("step 1 of 13 was skipped", result.stderr)

    def test_flags_are_the_same_in_every_subcommand(self):
        commands = [["plan"], *(["bench", name] for name in ("step", "schedule", "products", "links", "kernels"))]
        listed = {" ".join(words): set(re.findall(r"^ +(--[a-z0-9-]+)", tessera(*words, "--help"), re.M))
                  for words in (["train"], *commands)}
        # --steps of `train` and of `bench step` count different steps but have the same name.
        self.assertLessEqual({"--cuda-graph", "--deterministic", "--pushes", "--coalesce", "--backend", "--steps"},
                             listed["bench step"])
        refused_by_train = functools.cache(lambda flag: run("train", flag, "").stderr)
        for words in commands:
            # Flags of rules accept an empty text.
            flags = [flag for flag in sorted(listed[" ".join(words)] & listed["train"] - {"--help"}) if "-rules" not in flag]
            # The parsers are compared flag by flag in tests/settings/flags_test.cpp.
            for flag in flags if FULL else flags[::12]:
                with self.subTest(command=words, flag=flag):
                    got = run(*words, flag, "", timeout=60)
                    self.assertEqual((2, refused_by_train(flag)), (got.returncode, got.stderr))
                    self.assertIn(flag, got.stderr)
        self.refused_line(run("bench", "step", "--model", "llama-tiny-odd", "--no-pushes"), "--no-pushes")

    def refused_line(self, result, word):
        self.assertEqual((2, 1), (result.returncode, len(result.stderr.splitlines())), result.stderr)
        self.assertIn(word, result.stderr)

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_one_line_under_mpi(self):
        result = run("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 32, "--steps", 1, "--out",
                     self.folder / "mpi", mpi_ranks=2)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--backend", result.stderr)
        self.assertFalse((self.folder / "mpi").exists())
        for flags, word in ((["--frobnicate", 1], "--frobnicate"), (["--gtp", 2], "3 processes were started, expected a multiple of --tp 1 * --gtp 2 = 2")):
            result = run("train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 32, "--steps", 1, "--backend",
                         "mpi", *flags, "--out", self.folder / "mpi", mpi_ranks=3)
            self.assertEqual(result.returncode, 2)
            lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
            self.assertEqual(len(lines), 1, result.stderr)
            self.assertIn(word, lines[0])
            self.assertFalse((self.folder / "mpi").exists())


@unittest.skipUnless(MPIRUN, "no mpirun")
class LostRank(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("lost-rank")
        cls.data = write_tokens(cls.folder / "tokens", 131)

    def lose(self, name, sent, *mesh):
        """Starts a long run on three ranks and sends a signal to one rank. Returns the seconds until the end, the exit code and
        the output."""
        out = self.folder / name
        arguments = ["train", "--model", "llama-tiny-odd", "--data", self.data, "--seq-len", 32, "--steps", 10**6, "--backend",
                     "mpi", *(mesh or ("--gtp", 3)), "--timeout-s", LIMIT_S, "--out", out]
        with open(self.folder / f"{name}.log", "w", encoding="utf8") as log:
            job = subprocess.Popen(command(*arguments, mpi_ranks=3), stdout=subprocess.DEVNULL, stderr=log, env=ENVIRONMENT)
            try:
                for _ in range(300):
                    if (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size:
                        break
                    time.sleep(0.1)
                ranks = programs_with(out)
                self.assertEqual(len(ranks), 3)
                started = time.monotonic()
                os.kill(ranks[-1], sent)
                code = job.wait(timeout=60)
                seconds = time.monotonic() - started
            finally:
                job.kill()
                for pid in programs_with(out):
                    os.kill(pid, signal.SIGKILL)
        return seconds, code, (self.folder / f"{name}.log").read_text(errors="replace")

    def test_a_stopped_rank(self):
        seconds, code, text = self.lose("stopped", signal.SIGSTOP)
        self.assertNotEqual(code, 0)
        self.assertLess(seconds, LIMIT_S + 20)
        lines = [line for line in text.splitlines() if line.startswith("tessera: rank")]
        self.assertTrue(lines, text)
        for line in lines:
            self.assertIn("time limit", line)
            self.assertIn("--timeout-s", line)
        self.assertRegex(lines[0], "^tessera: rank [0-2] hangs: ")
        self.assertIn("train --resume latest --out", text)

    def test_a_killed_rank(self):
        seconds, code, _ = self.lose("killed", signal.SIGKILL)
        self.assertNotEqual(code, 0)
        self.assertLess(seconds, LIMIT_S + 20)

    def test_a_rank_that_is_killed_while_pieces_travel(self):
        """The delays of pieces take most of a step, so pieces are in flight when the rank is killed."""
        seconds, code, _ = self.lose("killed-pieces", signal.SIGKILL, "--tp", 3, "--sequence-parallel", "on", "--tp-overlap", "on",
                                     "--debug-delays", 3)
        self.assertNotEqual(code, 0)
        self.assertLess(seconds, LIMIT_S + 20)


if __name__ == "__main__":
    run_cases()
