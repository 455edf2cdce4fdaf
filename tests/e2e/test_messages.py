#!/usr/bin/env python3
"""Wrong uses: each is one line that says what is wrong and what to do, and writes nothing."""
import json
import os
import shutil
import subprocess
import unittest

from program import ENVIRONMENT, MPIRUN, ROOT, command, run, scratch, tessera, write_tokens
from summary import run_cases

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("messages")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.train = ["train", "--model", "llama-tiny-odd", "--data", cls.data, "--seq-len", 32, "--global-batch", 4]
        cls.made = cls.folder / "run"
        tessera(*cls.train, "--steps", 3, "--save-every", 1, "--out", cls.made)
        cls.hf = cls.folder / "hf"
        tessera("convert", cls.made, cls.hf)
        cls.text = cls.folder / "my.txt"
        cls.text.write_text("some text\n")

    def check(self, *arguments, expect, without=(), mpi_ranks=None, code=2, **variables):
        """The line that the program ends with has every word of `expect`, none of `without`; --out is not made."""
        out = self.folder / "out"
        if arguments[0] == "train" and "--out" not in arguments:
            arguments = (*arguments, "--out", out)
        result = subprocess.run(command(*arguments, mpi_ranks=mpi_ranks), capture_output=True, text=True, check=False,
                                env={**ENVIRONMENT, **variables}, timeout=120)
        self.assertEqual(code, result.returncode, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
        self.assertEqual(1, len(lines), result.stderr)
        for word in expect:
            self.assertIn(str(word), lines[0])
        for word in without:
            self.assertNotIn(str(word), lines[0])
        self.assertFalse(out.exists(), arguments)

    def copy_of_run(self, name):
        return shutil.copytree(self.made, self.folder / name)

    def test_words_behind_a_flag(self):
        for words, expect in ((("--steps", 3, "extra"), ["unexpected word 'extra'", "expected a flag", "tessera train --help"]),
                              (("--steps", 3, "--steps", 4), ["--steps", "given more than once"]),
                              (("--zero", "off", "extra"), ["unexpected word 'extra'"]),
                              (("--zero", "--zero"), ["--zero", "given more than once"]),
                              (("--steps",), ["--steps: expected a value"]), (("--data",), ["--data: expected a value"]),
                              (("extra",), ["unexpected word 'extra'"]), (("--frobnicate",), ["unknown flag --frobnicate", "--help"]),
                              (("--step", 3), ["unknown flag --step", "did you mean '--steps'"])):
            self.check("train", "--out", self.folder / "out", *words, expect=expect, without=["Most", "TEXT"])
        for words, expect in ((("convert", "a", "b", "c"), ["unexpected word 'c'", "tessera convert --help"]),
                              (("convert", "a", "b", "--dtyp", "fp32"), ["unknown flag --dtyp", "'--dtype'"]),
                              (("convert", "a"), ["target is required", "tessera convert --help"]),
                              (("convert", "a", "b", "--dtype", "fp32", "--dtype", "bf16"), ["--dtype", "given more than once"]),
                              (("plan", "--tp", 2, "more"), ["unexpected word 'more'", "tessera plan --help"]),
                              (("inspect", "a", "--jsn"), ["unknown flag --jsn", "'--json'"])):
            self.check(*words, expect=expect, without=["tessera: tessera"])

    def test_a_resume_without_a_checkpoint(self):
        stopped = self.copy_of_run("stopped")
        shutil.rmtree(stopped / "checkpoints")
        (stopped / "checkpoints").mkdir()
        self.check("train", "--resume", stopped, expect=["--resume", stopped, "before its first checkpoint", "--resume latest --out"])
        absent = self.folder / "absent"
        self.check("train", "--resume", absent, expect=["--resume", absent, "the file or folder does not exist", "checkpoint"])
        self.check("train", "--resume", "latest", expect=["--resume latest", self.folder / "out", "holds no run", "--model"])
        self.check("train", "--resume", self.text, expect=["--resume", self.text, "is a file", "folder of a checkpoint"])
        self.check("train", "--resume", self.hf, expect=["--resume", "Hugging Face folder", "--init", self.hf])
        self.check("train", "--resume", "latest", "--out", absent, expect=["--resume latest", absent, "holds no run"])
        tessera("train", "--resume", "latest", "--out", stopped)
        self.assertTrue((stopped / "checkpoints" / "step-00000003").exists())

    def test_a_damaged_checkpoint_names_the_one_before_it(self):
        for file, change in (("part-00000.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
                             ("part-00000.safetensors", lambda content: content[:-10]),
                             ("manifest.json", lambda content: content[:-3])):
            damaged = self.copy_of_run("damaged")
            path = damaged / "checkpoints" / "step-00000003" / file
            path.write_bytes(change(path.read_bytes()))
            before = damaged / "checkpoints" / "step-00000002"
            self.check("train", "--resume", "latest", "--out", damaged, "--steps", 4, expect=[path, f"--resume {before}"])
            tessera("train", "--resume", before, "--out", damaged, "--steps", 4)
            self.check("train", "--resume", "latest", "--out", damaged, "--steps", 3, expect=["--steps: got 3"])
            shutil.rmtree(damaged)

    def test_sources_and_types_of_convert(self):
        x, absent = self.folder / "x", self.folder / "absent"
        self.check("convert", absent, x, expect=[absent, "the file or folder does not exist", "checkpoint", "Hugging Face"], without=["manifest"])
        self.check("convert", self.text, x, expect=[self.text, "is a file", "folder of a checkpoint", "Hugging Face"])
        for dtype in ("fp16", "i32"):
            self.check("convert", self.made, x, "--dtype", dtype, expect=[f"--dtype: got '{dtype}'", "expected fp32, bf16 or fp64"],
                       without=["u8", "i64"])
        self.check("convert", self.made, x, "--format", "int4", expect=["--format", "int4", "fp8_block"])
        self.check("convert", self.made, x, "--max-shard-size", "5XB", expect=["--max-shard-size", "5XB", "5GB"])
        self.check("convert", self.made, self.hf, expect=["target", self.hf, "exists", "new or empty folder"])
        pickled = self.folder / "pickled"
        pickled.mkdir()
        shutil.copy(self.hf / "config.json", pickled)
        (pickled / "pytorch_model.bin").write_bytes(b"")
        self.check("convert", pickled, x, expect=[pickled, "model.safetensors", "pytorch_model.bin is not read"])
        self.assertFalse(x.exists())

    def test_data_that_is_not_prepared(self):
        flags = ("train", "--model", "llama-tiny-odd", "--steps", 1, "--seq-len", 32, "--data")
        self.check(*flags, self.text, expect=["--data", self.text, "is a file", "PREFIX.bin", "python/prepare_text.py --input"])
        self.check(*flags, self.folder / "absent", expect=["--data", "absent.idx", "PREFIX.bin", "prepare_text.py"])
        self.check(*flags, self.folder, expect=["--data", "is a folder", f"there: {self.folder / 'tokens'}"])
        self.check(*flags, f"{self.data}.bin", expect=["--data", "without .bin"])
        self.check(*flags, self.data, "--valid", self.text, expect=["--valid", self.text, "prepare_text.py"])

    def test_inspect_of_something_else(self):
        self.check("inspect", self.text, expect=[self.text, "is a file", "checkpoint", "PREFIX.bin", "prepare_text.py"])
        self.check("inspect", self.folder / "absent", expect=["absent", "the file or folder does not exist"])
        self.check("inspect", self.hf, expect=[self.hf, "Hugging Face folder", "tessera convert"])

    def test_json_files_of_other_kinds(self):
        config = self.made / "config.json"
        self.check("train", "--config", config, expect=["--config", config, "'config'", "--resume"])
        self.check("train", "--config", self.hf / "config.json", expect=["--config", "describes a model", "--model"])
        self.check("train", "--config", self.folder / "absent.json", expect=["--config", "absent.json", "No such file"])
        self.check("train", "--model", config, "--data", self.data, "--steps", 1, expect=[config, "config.json of a run", "'model'"])
        self.check("plan", "--measured", self.folder / "absent", expect=["--measured", "absent", "holds no run"])
        self.check("plan", "--model", "llama-tiny-odd", "--machine", "b300", expect=["--machine", "b300", "h200", "laptop"])

    def test_rules_without_a_match_list_the_names(self):
        for flag in ("--wire-rules", "--wire-rules-backward", "--gemm-rules"):
            self.check(*self.train, "--steps", 1, "--dtype", "bf16", flag, "layers.*.ffn=fp8",
                       expect=[flag, "layers.*.ffn=fp8", "layers.*.mlp.gate_up.weight", "layers.*.attention.qkv.weight",
                               "output.weight"], without=["layers.0", "layers.1", "norm.weight"])

    def test_processes_without_their_backend(self):
        self.check(*self.train, "--steps", 1, "--backend", "mpi", **TORCHRUN,
                   expect=["--backend: got mpi", "MPI has 1 process", "torchrun started 2", "mpirun -n 2", "--backend nccl"])
        self.check(*self.train, "--steps", 1, "--backend", "local", **TORCHRUN,
                   expect=["--backend: got local", "nccl", "torchrun started 2 processes", "without a launcher"], without=["mpi"])
        srun = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "0"}
        self.check(*self.train, "--steps", 1, "--backend", "mpi", **srun, expect=["srun started 3", "srun --mpi=pmix"])
        self.check(*self.train, "--steps", 1, **srun, expect=["got local, expected mpi (ranks on CPUs) or nccl", "srun started 3"])

    def test_counts_of_processes(self):
        self.check(*self.train, "--steps", 1, "--backend", "mpi", "--tp", 2,
                   expect=["1 process was started", "--tp 2", "mpirun -n 2"], without=["got 1", "launcher"])
        self.check(*self.train, "--steps", 1, "--backend", "mpi", "--ranks", 4,
                   expect=["--ranks: got 4, expected 1: 1 process was started", "mpirun -n 4"], without=["launcher"])
        self.check(*self.train, "--steps", 1, "--ranks", 3, "--tp", 2, expect=["--ranks: got 3", "multiple of --tp 2"])
        if MPIRUN:
            self.check(*self.train, "--steps", 1, "--backend", "mpi", "--tp", 3, mpi_ranks=2,
                       expect=["2 processes were started", "--tp 3", "mpirun -n 3"])
            self.check(*self.train, "--steps", 1, "--backend", "mpi", "--ranks", 4, mpi_ranks=2,
                       expect=["--ranks: got 4, expected 2: 2 processes were started"])
            self.check(*self.train, "--steps", 1, mpi_ranks=2, expect=["got local, expected mpi", "mpirun started 2 processes"])

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_a_flag_is_named_once_under_mpi(self):
        for flags, flag in ((("--out", self.text), "--out: "), (("--init", self.made), "--init: ")):
            result = run(*self.train, "--steps", 1, "--backend", "mpi", *flags, *(() if "--out" in flags else ("--out", "x")), mpi_ranks=2)
            lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
            self.assertEqual((2, 1), (result.returncode, len(lines)), result.stderr)
            self.assertTrue(lines[0].startswith(f"tessera: {flag}"), lines)
            self.assertEqual(1, lines[0].count(flag), lines)

    def test_sizes_and_words(self):
        for flags, expect in ((("--global-batch", 5, "--gtp", 2), ["--global-batch: got 5", "--gtp 2"]),
                              (("--seq-len", 4096), ["--seq-len: got 4096", "at most 512"]),
                              (("--gather-budget", "3XB"), ["--gather-budget", "3XB", "300MB"]),
                              (("--zero", "maybe"), ["--zero", "maybe", "on or off"]),
                              (("--dtype", "fp16"), ["--dtype", "fp16", "fp32, bf16, fp64"]),
                              (("--backend", "nccl"), ["--backend nccl", "./run build cuda"] if self.is_cpu_build() else ["nccl"])):
            flags = (*flags, *(() if "--seq-len" in flags else ("--seq-len", 32)))
            with self.subTest(flags):
                if flags[0] != "--backend" or self.is_cpu_build():
                    self.check("train", "--model", "llama-tiny-odd", "--data", self.data, "--steps", 1, *flags, expect=expect)
        self.check(*self.train, "--steps", 1, "--out", self.made, expect=["--out", self.made, "another run", "--resume latest"])
        self.check("trian", expect=["trian", "train, inspect, convert, plan or bench"])

    def is_cpu_build(self):
        return "no CUDA" in run("train", "--backend", "nccl", "--ranks", 10**6).stderr

    def test_numbers_without_a_format_have_the_name_of_the_type(self):
        for dtype in ("fp32", "bf16", "fp64"):
            out = self.folder / f"type-{dtype}"
            tessera(*self.train, "--steps", 1, "--tp", 2, "--gtp", 2, "--dtype", dtype, "--out", out)
            summary = json.loads((out / "summary.json").read_text())
            line = json.loads((out / "metrics.jsonl").read_text())
            for values in (summary["gathered_bytes"], summary["flops"], summary["activation_bytes"], line["activations_by_format"]):
                self.assertEqual([dtype], list(values))
            for key in ("wire_format", "gemm_format", "tp_wire_format"):
                self.assertEqual(dtype, summary[key], key)
            tessera("train", "--resume", "latest", "--out", out, "--tp", 2, "--gtp", 2, "--steps", 2)  # reads its own lines
            tessera("plan", "--measured", out)

    def test_files_that_cannot_be_written(self):
        self.check("plan", "--model", "llama-tiny-odd", "--seq-len", 32, "--trace", self.folder / "absent" / "x", code=2,
                   expect=["--trace", "absent"])


if __name__ == "__main__":
    run_cases()
