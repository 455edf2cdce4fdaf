#!/usr/bin/env python3
"""Each wrong use prints one line with the problem and the remedy, and writes nothing."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

from program import AWKWARD_FILES, ENVIRONMENT, MPIRUN, ROOT, command, forked, metrics, run, scratch, tessera, write_tokens
from summary import run_cases

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}

# Imitates the Python package tokenizers.
TOKENIZERS = """
class Tokenizer:
    ids, special_tokens_mask = [3], [0]
    def from_buffer(data):
        return Tokenizer()
    def encode(self, text):
        return self
    def decode(self, ids, skip_special_tokens):
        return "x" * len(ids)
    no_truncation = no_padding = lambda self: None
"""


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
        """Checks that the program prints one line with every word of `expect`, without the words of `without`, and that it does
        not create --out."""
        out = self.folder / "out"
        if arguments[0] == "train" and "--out" not in arguments:
            arguments = (*arguments, "--out", out)
        result = run(*arguments, mpi_ranks=mpi_ranks, timeout=120, **variables)
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

    def test_unexpected_words_and_flags(self):
        for words, expect in ((("--steps", 3, "extra"), ["unexpected word 'extra'", "expected a flag", "tessera train --help"]),
                              (("--steps", 3, "--steps", 4), ["--steps", "given more than once"]),
                              (("--zero", "off", "extra"), ["unexpected word 'extra'"]),
                              (("--zero", "--zero"), ["--zero", "given more than once"]),
                              (("--steps",), ["--steps: expected a value"]), (("--data",), ["--data: expected a value"]),
                              (("extra",), ["unexpected word 'extra'"]), (("--frobnicate",), ["unknown flag --frobnicate", "--help"]),
                              (("--step", 3), ["unknown flag --step", "did you mean '--steps'"])):
            self.check("train", "--out", self.folder / "out", *words, expect=expect, without=["Most", "TEXT"])
        link = self.folder / "link"
        link.symlink_to("/absent/disk")
        self.check("train", *self.train[1:], "--steps", 1, "--out", link / "run",
                   expect=[f"--out: '{link}' is a link to '/absent/disk', which does not exist"], without=["File exists"])
        for words, expect in ((("convert", "a", "b", "c"), ["unexpected word 'c'", "tessera convert --help"]),
                              (("convert", "a", "b", "--dtyp", "fp32"), ["unknown flag --dtyp", "'--dtype'"]),
                              (("convert", "a"), ["target is required", "tessera convert --help"]),
                              (("convert", "a", "b", "--dtype", "fp32", "--dtype", "bf16"), ["--dtype", "given more than once"]),
                              (("plan", "--tp", 2, "more"), ["unexpected word 'more'", "tessera plan --help"]),
                              (("inspect", "a", "--jsn"), ["unknown flag --jsn", "'--json'"])):
            self.check(*words, expect=expect, without=["tessera: tessera"])

    def test_a_flag_in_place_of_a_value(self):
        for flag in ("--data", "--model", "--lr", "--out", "--config"):
            self.check("train", flag, "--steps", 3, "--out", self.folder / "out", expect=[f"{flag}: expected a value", "--steps"])
        self.check("convert", self.made, self.folder / "x", "--dtype", "--json", expect=["--dtype: expected a value", "--json"])
        self.check("plan", "--model", "--tp=2", expect=["--model: expected a value", "the flag --tp"], without=["=2"])

    def test_an_empty_value(self):
        """A script may pass the value of a variable that is not set."""
        tiny = ("plan", "--model", "llama-tiny-odd")
        for words in ((*tiny, "--layers"), (*tiny, "--memory-margin"), (*tiny, "--expert-load"), (*tiny, "--dead-share"),
                      ("generate", self.made, "--prompt-ids", "1", "--tokens"), ("generate", self.made, "--prompt-ids", "1", "--top-p")):
            self.check(*words, "", expect=[f'tessera: {words[-1]}: got "", expected a number'])
        for words in (*((*tiny, flag) for flag in ("--measured", "--events", "--save-events", "--trace")), ("plot", self.made, "--svg")):
            self.check(*words, "", expect=[f'tessera: {words[-1]}: got "", expected a path'])
        self.check("convert", self.made, "", expect=["target '': expected the name of a new folder"])
        self.check(*tiny, "--memory-margin", "much", expect=['tessera: --memory-margin: got "much", expected a number'])

    def test_paths_that_are_not_utf8(self):
        """Each path of each command is refused by its flag. tests/settings/flags_test.cpp has all flags of train."""
        bad = os.fsdecode(bytes(self.folder / "caf") + b"\xe9")
        shutil.copytree(self.made, bad)
        tiny = ("--model", "llama-tiny-odd")
        before = os.listdir(os.fsencode(self.folder))
        for words, flag in ((("train", "--data"), "--data"), (("train", *tiny, "--config"), "--config"),
                            (("generate", bad, "--prompt-ids", "1"), "path"), (("generate", self.made, "--prompt-file"), "--prompt-file"),
                            (("generate", self.made, "--prompt"), "--prompt"), (("evaluate", bad, "--data", self.data), "path"),
                            (("evaluate", self.made, "--data"), "--data"), (("inspect", "--json"), "path"), (("inspect",), "path"),
                            (("inspect", "layout", "--model"), "--model"), (("convert", self.made), "target"),
                            (("convert", bad, self.folder / "x"), "source"), (("plan", "--json", "--model"), "--model"),
                            (("plan", *tiny, "--machine"), "--machine"), (("plan", "--json", "--measured"), "--measured"),
                            (("plan", *tiny, "--events"), "--events"), (("plan", *tiny, "--save-events"), "--save-events"),
                            (("plan", *tiny, "--trace"), "--trace"), (("plan", *tiny, "--dead"), "--dead"), (("plot",), "runs"),
                            (("plot", self.made, bad), "runs"), (("plot", self.made, "--svg"), "--svg"),
                            (("resume-command", "--lost", "1"), "run"), (("bench", "step", *tiny, "--profile"), "--profile"),
                            (("bench", "schedule", "--machine"), "--machine"), (("bench", "products", "--model"), "--model")):
            with self.subTest(words):
                words = words if bad in words else (*words, bad)
                self.check(*words, expect=[f"tessera: {flag}: got '", "caf\\xe9', expected UTF-8: byte ", "rename the file or the folder"])
        self.assertEqual(before, os.listdir(os.fsencode(self.folder)))
        self.check("train", "--frob\udce9", expect=["--frob\\xe9"])
        self.check("caf\udce9", expect=["'caf\\xe9'"])

    def test_a_folder_that_is_not_utf8(self):
        """Relative paths work in a folder with such a name, and the run resumes. Text is generated with a tokenizer in such a folder."""
        folder = os.fsdecode(bytes(self.folder / "folder") + b"\xe9")
        os.mkdir(folder)
        for suffix in (".bin", ".idx"):
            shutil.copy(f"{self.data}{suffix}", f"{folder}/tokens{suffix}")
        for words in (("train", "--model", "llama-tiny-odd", "--data", "tokens", "--seq-len", 32, "--global-batch", 4, "--steps", 1, "--out", "run"),
                      ("train", "--resume", "latest", "--out", "run", "--steps", 2), ("inspect", "run", "--json"), ("plot", "run"),
                      ("plan", "--measured", "run", "--json")):
            result = subprocess.run(forked(command(*words)), capture_output=True, check=False, cwd=folder, env=ENVIRONMENT, timeout=120)
            self.assertEqual(0, result.returncode, result.stderr)
            if "--json" in words:
                json.loads(result.stdout)
        self.assertEqual([1, 2], [line["step"] for line in metrics(self.folder / os.path.basename(folder) / "run")])
        os.mkdir(f"{folder}/run/tokenizer")
        for name, text in (("run/tokenizer/tokenizer.json", "{}"), ("tokenizers.py", TOKENIZERS)):
            pathlib.Path(f"{folder}/{name}").write_text(text)
        line = forked(command("generate", "run", "--prompt", "a", "--tokens", 1, "--json"))
        result = subprocess.run(line, capture_output=True, check=False, cwd=folder, timeout=120,
                                env={**ENVIRONMENT, "TESSERA_PYTHON": sys.executable, "PYTHONPATH": folder})
        self.assertEqual((0, [3]), (result.returncode, json.loads(result.stdout or "{}").get("prompt_ids")), result.stderr)

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

    def test_the_message_of_a_damaged_checkpoint_names_the_previous_one(self):
        for file, change in (("part-00000.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
                             ("part-00000.safetensors", lambda content: content[:-10]),
                             ("manifest.json", lambda content: content[:-3])):
            damaged = self.copy_of_run("damaged")
            path = damaged / "checkpoints" / "step-00000003" / file
            path.write_bytes(change(path.read_bytes()))
            before = damaged / "checkpoints" / "step-00000002"
            self.check("train", "--resume", "latest", "--out", damaged, "--steps", 4, expect=[path, f"--resume {before}"])
            self.check("train", "--resume", f"{path.parent}/", "--out", damaged, "--steps", 4, expect=[file, f"--resume {before}"])
            for words in (("generate", damaged, "--prompt-ids", 1), ("convert", path.parent, self.folder / "x"), ("inspect", damaged, "--verify")):
                self.check(*words, expect=[file, f"({before} is the checkpoint before it)"], without=["--resume"])
            tessera("train", "--resume", before, "--out", damaged, "--steps", 4)
            self.check("train", "--resume", "latest", "--out", damaged, "--steps", 3, expect=["--steps: got 3"])
            shutil.rmtree(damaged)

    def test_the_message_of_a_damaged_first_checkpoint_names_the_later_ones(self):
        damaged = self.copy_of_run("damaged-first")
        first = damaged / "checkpoints" / "step-00000001"
        (first / "part-00000.safetensors").write_bytes(b"")
        self.check("train", "--resume", first, "--out", damaged,
                   expect=["part-00000.safetensors", "(other checkpoints there: step-00000002, step-00000003)"])
        state = json.loads((first / "manifest.json").read_text())
        self.assertEqual(1, state["step"])

    def test_a_wrong_step_names_the_checkpoints_that_exist(self):
        checkpoints = self.made / "checkpoints"
        (self.made / "checkpoints" / "step-00000008").mkdir()
        for path in (checkpoints / "step-00000007", checkpoints / "step-7", self.made / "step-00000007", checkpoints / "step-00000008"):
            for words in (("train", "--resume", path), ("generate", path, "--prompt-ids", 1), ("inspect", path)):
                self.check(*words, expect=[path, f"checkpoints in {checkpoints}: step-00000001, step-00000002, step-00000003"])
        (self.made / "checkpoints" / "step-00000008").rmdir()

    def test_a_key_of_a_config_that_resembles_another_warns(self):
        folder = shutil.copytree(self.hf, self.folder / "misspelled")
        config = json.loads((folder / "config.json").read_text())
        config["num_kv_heads"] = config["num_key_value_heads"]
        del config["num_key_value_heads"], config["head_dim"]
        config.update(num_attention_heads=3, hidden_size=36)
        (folder / "config.json").write_text(json.dumps(config))
        warning = f"warning: {folder}/config.json: the key 'num_kv_heads' is not read: did you mean 'num_key_value_heads'"
        model = ("--model", folder, "--seq-len", 32)
        for words in (("plan", *model), ("bench", "step", *model, "--steps", 1, "--warmup", 1), ("inspect", "layout", "--model", folder),
                      ("train", *model, "--data", self.data, "--global-batch", 1, "--steps", 0, "--out", self.folder / "warned")):
            result = run(*words)
            self.assertEqual((0, 1), (result.returncode, (result.stdout + result.stderr).count(warning)), result.stderr)
        result = run("convert", folder, self.folder / "never")  # the tensors have other sizes
        self.assertEqual((2, 1), (result.returncode, result.stderr.count(warning)), result.stderr)
        good = json.loads((self.hf / "config.json").read_text())
        good["rope_tetha"] = 1e6
        del good["rope_theta"]
        (folder / "config.json").write_text(json.dumps(good))
        for words in (("generate", folder, "--prompt-ids", 1, "--tokens", 1), ("evaluate", folder, "--data", self.data, "--seq-len", 32),
                      ("convert", folder, self.folder / "warned-too")):
            result = run(*words)
            self.assertEqual((0, 1), (result.returncode, result.stderr.count("did you mean 'rope_theta'")), result.stderr)

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

    def test_data_that_was_not_prepared(self):
        flags = ("train", "--model", "llama-tiny-odd", "--steps", 1, "--seq-len", 32, "--data")
        self.check(*flags, self.text, expect=["--data", self.text, "is a file", "PREFIX.bin", "python/prepare_text.py --input"])
        self.check(*flags, self.folder / "absent", expect=["--data", "absent.idx", "PREFIX.bin", "prepare_text.py"])
        self.check(*flags, self.folder, expect=["--data", "is a folder", f"there: {self.folder / 'tokens'}"])
        self.check(*flags, f"{self.data}.bin", expect=["--data", "without .bin"])
        foreign = write_tokens(self.folder / "foreign", 400)
        self.check(*flags, foreign, expect=[f"--data: {foreign}.bin", "vocab_size 131"])
        self.check(*flags, self.data, "--valid", foreign, expect=[f"--valid: {foreign}.bin", "vocab_size 131"])
        self.check(*flags, self.data, "--valid", self.text, expect=["--valid", self.text, "prepare_text.py"])

    def test_a_model_without_a_config(self):
        rest = ("--data", self.data, "--steps", 1)
        weights = self.hf / "model.safetensors"
        self.check("train", "--model", weights, *rest, expect=["--model", weights, "config.json", f"--init {self.hf} "])
        self.check("train", "--model", self.folder, *rest, expect=["--model", self.folder, "without config.json", "llama-tiny"])

    def test_inspect_of_other_files(self):
        self.check("inspect", self.text, expect=[self.text, "is a file", "checkpoint", "PREFIX.bin", "prepare_text.py"])
        self.check("inspect", self.folder / "absent", expect=["absent", "the file or folder does not exist"])
        self.check("inspect", self.hf, expect=[self.hf, "Hugging Face folder", "tessera convert"])

    def test_json_files_of_other_kinds(self):
        config = self.made / "config.json"
        self.check("train", "--config", config, expect=["--config", config, "'config'", "--resume"])
        self.check("train", "--config", self.hf / "config.json", expect=["--config", "describes a model", "--model"])
        self.check("train", "--config", self.folder / "absent.json", expect=["--config", "absent.json", "No such file or directory"])
        self.check("train", "--model", config, "--data", self.data, "--steps", 1, expect=[config, "config.json of a run", "'model'"])
        self.check("plan", "--measured", self.folder / "absent", expect=["--measured", "absent", "holds no run"])
        self.check("plan", "--model", "llama-tiny-odd", "--machine", "b300", expect=["--machine", "b300", "h200", "laptop"])

    def test_rules_without_a_match_list_the_names(self):
        for flag in ("--wire-rules", "--wire-rules-backward", "--gemm-rules"):
            self.check(*self.train, "--steps", 1, "--dtype", "bf16", flag, "layers.*.ffn=fp8", without=["layers.0", "norm.weight"],
                       expect=[flag, "layers.*.ffn=fp8", "layers.*.mlp.gate_up.weight", "layers.*.attention.qkv.weight", "output.weight"])
        self.check(*self.train, "--steps", 1, "--lr-rules", "ffn=1", expect=["--lr-rules: got ffn=1", "trained parameter: embedding"])

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
            stored = self.folder / "mpi"
            tessera(*self.train, "--steps", 1, "--backend", "mpi", "--gtp", 2, "--out", stored, mpi_ranks=2)
            self.check("train", "--resume", "latest", "--steps", 2, "--out", stored, without=["launcher"],
                       expect=["--resume: 1 process was started", "2 ranks (tp 1 x gtp 2 x dp 1)", "mpirun -n 2", "--gtp"])
            self.check(*self.train, "--steps", 1, mpi_ranks=2, expect=["got local, expected mpi", "mpirun started 2 processes"])

    def test_tokens_of_tp_in_commands_without_a_run(self):
        tiny = ("--model", "llama-tiny-odd")
        for words in (("plan", *tiny), ("bench", "schedule"), ("bench", "step", *tiny, "--steps", 1), ("inspect", "layout", *tiny)):
            for bad in ("abc", 0, 2.5):
                self.check(*words, "--tp", 2, "--seq-len", 16, "--tp-chunks", bad, expect=[f"--tp-chunks: got {bad}, expected auto or a number above 0"])
            for flags in (("--tp", 2, "--sequence-parallel", "off"), ()):
                self.check(*words, *flags, "--seq-len", 16, "--tp-chunks", 2, expect=["--tp-chunks: got 2", "--sequence-parallel on"])
                self.check(*words, *flags, "--seq-len", 16, "--tp-overlap", "on", expect=["--tp-overlap: got on", "--sequence-parallel on"])
        self.check("plan", "--search", *tiny, "--ranks", 4, "--global-batch", 8, "--tp-chunks", "abc", expect=["--tp-chunks: got abc"])

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_ranks_with_different_flags(self):
        """The ranks compare their flags before they make the groups of their meshes, which need equal meshes."""
        one = forked(command(*self.train, "--steps", 1, "--backend", "mpi", "--out", self.folder / "different"))
        for first, other, expected in ((("--gtp", "2", "--seed", "5"), ("--gtp", "2", "--seed", "6"), "--seed: got 6, expected 5"),
                                       (("--gtp", "2"), ("--gtp", "1"), "--dp: got 2, expected 1")):
            line = [MPIRUN, "--oversubscribe", "-n", "1", *one, *first, ":", "-n", "1", *one, *other]
            result = subprocess.run(line, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=120)
            lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
            self.assertEqual((2, [f"tessera: rank 1: {expected} as on rank 0: start all ranks with the same flags and files"]),
                             (result.returncode, lines), result.stderr)

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
        self.check("trian", expect=["trian", "train, generate, evaluate, inspect, convert, plan, plot, resume-command or bench"])

    def is_cpu_build(self):
        return "no CUDA" in run("train", "--backend", "nccl", "--ranks", 10**6).stderr

    def test_counts_without_a_number_format_use_the_name_of_the_dtype(self):
        for dtype in ("fp32", "bf16", "fp64"):
            out = self.folder / f"type-{dtype}"
            tessera(*self.train, "--steps", 1, "--tp", 2, "--gtp", 2, "--dtype", dtype, "--out", out)
            summary = json.loads((out / "summary.json").read_text())
            line = json.loads((out / "metrics.jsonl").read_text())
            for values in (summary["gathered_bytes"], summary["flops"], summary["activation_bytes"], line["activations_by_format"]):
                self.assertEqual([dtype], list(values))
            for key in ("wire_format", "gemm_format", "tp_wire_format"):
                self.assertEqual(dtype, summary[key], key)
            tessera("train", "--resume", "latest", "--out", out, "--tp", 2, "--gtp", 2, "--steps", 2)  # reads the lines of the first run
            tessera("plan", "--measured", out)

    def test_files_that_nest_deeply(self):
        """Such files ended the program by a signal, because functions that print or copy values are recursive."""
        deep = "[" * 100_000 + "]" * 100_000
        limit = "nests more than 100 levels"
        model = self.folder / "deep.json"
        model.write_text(f'{{"model_type": "llama", "vocab_size": {deep}}}')
        for words in (("plan",), ("train", "--data", self.data, "--steps", 1)):
            self.check(*words, "--model", model, expect=[model, limit])
        for flag in ("--dead", "--idle"):
            (self.folder / "places.json").write_text(f'{{"dp0": {deep}}}')
            self.check("plan", "--model", "llama-tiny-odd", "--tp", 2, "--dp", 2, flag, self.folder / "places.json",
                       expect=[flag, "places.json", limit])
        (self.folder / "settings.json").write_text(f'{{"steps": {deep}}}')
        self.check("train", "--config", self.folder / "settings.json", expect=["--config", "settings.json", limit])
        folder = self.folder / "deep-hf"
        shutil.copytree(self.hf, folder)
        header = f'{{"a": {{"dtype": "F32", "shape": {deep}, "data_offsets": [0, 0]}}}}'.encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        self.check("convert", folder, self.folder / "x", expect=[folder / "model.safetensors", limit])
        damaged = self.copy_of_run("deep-run")
        (damaged / "config.json").write_text(f'{{"config": {deep}}}')
        self.check("resume-command", damaged, "--lost", 0, expect=[damaged / "config.json", limit])
        (damaged / "metrics.jsonl").write_text(f'{{"step": {deep}}}\n')
        self.check("plot", damaged, "--svg", self.folder / "x.svg", expect=["metrics.jsonl:1", limit])

    def test_sizes_that_no_machine_has(self):
        config = json.loads((self.hf / "config.json").read_text())
        large = self.folder / "large-hf"
        shutil.copytree(self.hf, large)

        def change(**sizes):
            (large / "config.json").write_text(json.dumps({**config, **sizes}))

        for layers, expect in ((300_000_000, ["num_hidden_layers", "from 1 to 4096"]),
                               (4096, ["holds", "tensors, expected at least 36864 for the 4096 layers"])):
            change(num_hidden_layers=layers)
            self.check("convert", large, self.folder / "x", expect=[large, *expect])
        for name in ("num_hidden_layers", "vocab_size", "num_attention_heads", "hidden_size", "intermediate_size", "head_dim"):
            change(**{name: 2_000_000_000})
            self.check("plan", "--model", large, expect=[name, "2000000000", "expected"])
        train = (*self.train, "--steps", 1)
        for flag, value, most in (("--tp", 1048576, 1024), ("--micro-batch", 2147483647, 67108864)):
            for words in (train, ("plan", "--model", "llama-tiny-odd")):
                self.check(*words, flag, value, expect=[f"{flag}: got {value}", f"at most {most}"])
        for words in (train, ("plan", "--model", "llama-tiny-odd")):
            self.check(*words, "--gtp", 1048576, "--dp", 1048576, expect=["--gtp 1048576 * --dp 1048576", "at most 1048576"])

    def test_a_model_that_does_not_fit_the_memory(self):
        """The limit of the address space takes the place of a small machine."""
        large = self.folder / "large-config.json"
        config = json.loads((self.hf / "config.json").read_text())
        large.write_text(json.dumps({**config, "hidden_size": 1 << 16, "intermediate_size": 1 << 16, "num_attention_heads": 1024,
                                     "num_key_value_heads": 1024, "head_dim": 64}))
        line = command("train", "--model", large, "--data", self.data, "--seq-len", 8, "--steps", 1, "--out", self.folder / "too-large")
        result = subprocess.run(["sh", "-c", 'ulimit -v 16000000; exec "$@"', "sh", *map(str, line)], capture_output=True, text=True,
                                check=False, timeout=120)
        self.assertEqual((2, 1), (result.returncode, result.stderr.count("\n")), result.stderr)
        self.assertIn("out of memory", result.stderr)

    def test_files_that_cannot_be_written(self):
        below = self.text / "run"
        for backend in ("local", "mpi"):
            self.check(*self.train, "--steps", 1, "--backend", backend, "--out", below, expect=[f"tessera: --out: '{below}'"],
                       without=["rank 0"])
        self.check("convert", self.made, below, code=1, expect=[below, "Not a directory"], without=["filesystem error"])
        self.check("plan", "--model", "llama-tiny-odd", "--seq-len", 32, "--trace", self.folder / "absent" / "x", code=2,
                   expect=["--trace", "absent"])


class FullDisk(unittest.TestCase):
    """A full disk gives exit code 1 and one line with the file and the reason. It leaves no incomplete file, and complete
    checkpoints can be resumed."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("full-disk")
        data = write_tokens(cls.folder / "tokens", 131)
        cls.train = ["train", "--model", "llama-tiny-odd", "--data", data, "--seq-len", 32, "--global-batch", 4,
                     "--save-every", 1, "--schedule-steps", 3, "--steps"]
        cls.made = cls.folder / "run"
        tessera(*cls.train, 3, "--out", cls.made)

    def fails(self, full, *arguments, expect, mpi_ranks=None):
        """Runs with a full disk. `full` is WORD:BYTES: writes beyond BYTES fail for files with WORD in their path."""
        result = subprocess.run(command(*arguments, mpi_ranks=mpi_ranks), capture_output=True, text=True, check=False, timeout=120,
                                env={**ENVIRONMENT, "LD_PRELOAD": str(AWKWARD_FILES), "TESSERA_TEST_FULL": full})
        lines = [line for line in result.stderr.splitlines() if line.startswith("tessera:")]
        self.assertEqual((1, 1), (result.returncode, len(lines)), (full, result.stderr))
        remedy = "free space there; --resume latest" if "train" in arguments else "free space there, then repeat the command"
        for word in (expect, "No space left on device", remedy):
            self.assertIn(str(word), lines[0])

    def names(self, folder):
        return sorted(path.name for path in folder.iterdir() if not path.name.startswith("events."))

    def resume_and_compare(self, out, *flags):
        tessera("train", "--resume", "latest", *flags, "--out", out)
        self.assertEqual(*([(line["step"], line["loss"]) for line in metrics(folder)] for folder in (self.made, out)))

    def test_while_a_checkpoint_is_written(self):
        for number, file in enumerate(("part-00000.safetensors", "manifest.json", "manifest.xxh3")):
            out = self.folder / f"saving-{number}"
            tessera(*self.train, 1, "--out", out)
            self.fails(f"{file}:5", "train", "--resume", "latest", "--steps", 3, "--out", out, expect="step-00000003.partial-")
            self.assertEqual(["step-00000001"], self.names(out / "checkpoints"))
            self.resume_and_compare(out, "--steps", 3)

    def test_while_metrics_are_written(self):
        """The second line does not fit on the disk."""
        out = self.folder / "metrics"
        self.fails("metrics.jsonl:400", *self.train, 3, "--out", out, expect=out / "metrics.jsonl")
        self.assertEqual([1], [line["step"] for line in metrics(out)])
        self.resume_and_compare(out)

    def test_at_the_start_and_at_the_end_of_a_run(self):
        out = self.folder / "start"
        self.fails("config.json:5", *self.train, 3, "--out", out, expect=out / "config.json")
        self.assertEqual(["checkpoints"], self.names(out))
        self.fails("summary.json:5", *self.train, 3, "--out", out, expect=out / "summary.json")
        self.assertEqual(["checkpoints", "config.json", "metrics.jsonl"], self.names(out))
        self.resume_and_compare(out)
        self.assertTrue((out / "summary.json").exists())

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes_print_one_line(self):
        """Only one line is printed, although mpirun sends SIGTERM to all ranks if one fails."""
        self.fails("part-00001:5", *self.train, 3, "--gtp", 2, "--backend", "mpi", "--out", self.folder / "mpi", mpi_ranks=2,
                  expect="part-00001.safetensors")

    def test_while_convert_writes(self):
        hf, target = self.folder / "hf", self.folder / "target"
        tessera("convert", self.made, hf)
        for source, files in ((self.made, ("model.safetensors", "config.json")), (hf, ("part-00000.safetensors", "manifest.json"))):
            for file in files:
                before = self.names(self.folder)
                self.fails("target.partial-:5", "convert", source, target, expect=target)
                self.fails(f"{file}:5", "convert", source, target, expect=file)
                self.assertEqual(before, self.names(self.folder))


if __name__ == "__main__":
    run_cases()
