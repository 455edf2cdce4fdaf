#!/usr/bin/env python3
"""Tests --init: a run from the weights of a Hugging Face folder has the bits of `convert` and a resume of its checkpoint."""
import itertools
import json
import os
import shutil
import struct
import unittest
from concurrent.futures import ThreadPoolExecutor

from program import MPIRUN, ROOT, bits, metrics, run, scratch, tessera, write_tokens
from summary import run_cases

FULL = os.environ.get("TESSERA_E2E") == "full"
MODELS = ("llama-tiny-odd", "qwen2-tiny-odd", "qwen3-tiny-odd")
MESHES = {"1": (), "tp3": ("--tp", 3), "gtp2": ("--gtp", 2), "tp2-gtp2-dp2": ("--tp", 2, "--gtp", 2, "--dp", 2)}
COMMON = ("--seq-len", 32, "--global-batch", 4)


def written(out):
    """Returns losses, norms and the bytes of the tensor files. Equal runs on one mesh write equal files."""
    files = sorted((out / "checkpoints" / "step-00000002").glob("*.safetensors"))
    assert files, out
    return [(line["loss"], line["grad_norm"]) for line in metrics(out)], [(path.name, path.read_bytes()) for path in files]


class Init(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("init")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.hf = cls.folder_of("llama-tiny-odd", False)

    @classmethod
    def folder_of(cls, name, tied, *flags):
        """Returns a folder of random weights that `convert` wrote with these flags."""
        folder = cls.folder / f"{name}-{'tied' if tied else 'apart'}{''.join(map(str, flags))}"
        if folder.exists():
            return folder
        config = json.loads((ROOT / "configs" / name / "config.json").read_text())
        path = cls.folder / f"{folder.name}.json"
        path.write_text(json.dumps(config | {"tie_word_embeddings": tied}))
        tessera("train", "--model", path, "--data", cls.data, "--seq-len", 32, "--steps", 0, "--seed", 7, "--out",
                cls.folder / f"{folder.name}-initial")
        tessera("convert", cls.folder / f"{folder.name}-initial", folder, *flags)
        return folder

    def copy(self, name):
        return shutil.copytree(self.hf, self.folder / name)

    def train(self, out, *flags, mpi_ranks=None):
        steps = () if "--steps" in flags else ("--steps", 2)
        return run("train", "--data", self.data, *COMMON, *steps, "--out", self.folder / out, *flags, mpi_ranks=mpi_ranks)

    def trained(self, out, *flags, mpi_ranks=None):
        result = self.train(out, *flags, mpi_ranks=mpi_ranks)
        self.assertEqual(0, result.returncode, result.stderr)
        return result

    def refused(self, out, *flags, expect):
        """Checks that the run exits with code 2, prints one line with every expected word, and writes nothing."""
        result = self.train(out, *flags)
        self.assertEqual((2, 1), (result.returncode, len(result.stderr.splitlines())), result.stderr)
        for word in expect:
            self.assertIn(str(word), result.stderr)
        self.assertFalse((self.folder / out).exists())

    def check_equal_to_convert(self, hf, dtype, mesh):
        name = f"{hf.name}-{dtype}-{mesh}"
        checkpoint = self.folder / f"{hf.name}-{dtype}-checkpoint"
        if not checkpoint.exists():
            tessera("convert", hf, checkpoint, "--dtype", dtype)
        flags = (*MESHES[mesh], "--dtype", dtype)
        with ThreadPoolExecutor(2) as pool:
            for job in [pool.submit(self.trained, f"{name}-resumed", "--resume", checkpoint, *flags),
                         pool.submit(self.trained, f"{name}-init", "--init", hf, *flags)]:
                job.result()
        self.assertEqual(written(self.folder / f"{name}-resumed"), written(self.folder / f"{name}-init"))

    def test_init_has_the_bits_of_convert_and_a_resume(self):
        for model, tied in itertools.product(MODELS, (False, True)):
            hf = self.folder_of(model, tied)
            for dtype, mesh in itertools.product(("fp32", "bf16"), MESHES):
                if FULL or (dtype == "bf16") == (mesh in ("tp3", "tp2-gtp2-dp2")):
                    with self.subTest(model=model, tied=tied, dtype=dtype, mesh=mesh):
                        self.check_equal_to_convert(hf, dtype, mesh)

    def test_quantized_folders(self):
        for number_format in ("fp8_block", "mxfp8"):
            hf = self.folder_of("llama-tiny-odd", False, "--dtype", "bf16", "--format", number_format)
            with self.subTest(number_format):
                self.check_equal_to_convert(hf, "bf16", "tp2-gtp2-dp2")

    @unittest.skipUnless(MPIRUN, "no mpirun")
    def test_processes(self):
        self.trained("processes", "--init", self.hf, "--backend", "mpi", "--tp", 3, mpi_ranks=3)
        self.trained("threads", "--init", self.hf, "--tp", 3)
        self.assertEqual(bits(self.folder / "threads"), bits(self.folder / "processes"))

    def test_a_resume_does_not_need_the_folder(self):
        hf = self.copy("moved")
        self.trained("whole", "--init", hf)
        self.trained("halves", "--init", hf, "--steps", 1, "--schedule-steps", 2)
        shutil.rmtree(hf)
        out = self.folder / "halves"
        tessera("train", "--resume", "latest", "--out", out, "--steps", 2)
        self.assertEqual(bits(self.folder / "whole"), bits(out))
        for file in ("summary.json", "config.json"):
            state = json.loads((out / file).read_text())
            self.assertEqual(str(hf), state.get("config", state)["init"])

    def test_a_run_that_stopped_before_its_first_checkpoint_starts_again(self):
        self.trained("complete", "--init", self.hf, "--gtp", 2)
        self.trained("stopped", "--init", self.hf, "--gtp", 2)
        for path in (self.folder / "stopped" / "checkpoints").iterdir():
            shutil.rmtree(path)
        (self.folder / "stopped" / "summary.json").unlink()
        tessera("train", "--resume", "latest", "--out", self.folder / "stopped")
        self.assertEqual(bits(self.folder / "complete"), bits(self.folder / "stopped"))

    def test_a_warning_if_model_is_a_folder_with_weights(self):
        line = f"warning: --model {self.hf}: its weights are not read, and training starts from random weights: --init {self.hf} reads them"
        result = self.trained("random", "--model", self.hf)
        self.assertEqual([line], [text for text in result.stdout.splitlines() if "warning" in text])
        result = self.trained("random-file", "--model", self.hf / "config.json")
        self.assertIn("its weights are not read", result.stdout)
        self.trained("config", "--model", self.folder / "llama-tiny-odd-apart.json")
        self.assertEqual(bits(self.folder / "config"), bits(self.folder / "random"))
        for out, flags in (("both", ("--init", self.hf, "--model", self.hf)), ("init", ("--init", self.hf))):
            self.assertNotIn("warning", self.trained(out, *flags).stdout)
        self.assertEqual(bits(self.folder / "init"), bits(self.folder / "both"))
        self.assertNotEqual(bits(self.folder / "init"), bits(self.folder / "random"))

    def test_values_that_are_not_finite_are_reported_once(self):
        hf = self.copy("not-finite")
        path = hf / "model.safetensors"
        content = bytearray(path.read_bytes())
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:8 + length])
        for tensor in ("model.norm.weight", "model.layers.1.self_attn.o_proj.weight"):
            begin = 8 + length + header[tensor]["data_offsets"][0]
            content[begin:begin + 8] = struct.pack("<2f", float("nan"), float("-inf"))
        path.write_bytes(content)
        expected = run("convert", hf, self.folder / "converted").stderr.replace("tessera: ", "").splitlines()
        self.assertEqual(2, len(expected))
        for mesh, flags in MESHES.items():
            result = self.trained(f"not-finite-{mesh}", "--init", hf, *flags)
            self.assertEqual(expected, [line for line in result.stdout.splitlines() if "warning" in line], mesh)

    def test_refusals(self):
        initial = self.folder / "llama-tiny-odd-apart-initial"
        self.refused("x", "--init", self.hf, "--resume", initial, expect=["--init", self.hf, "--resume", initial])
        self.refused("x", "--init", self.hf, "--resume", "latest", expect=["--init", self.hf, "--resume latest"])
        self.refused("x", "--init", self.hf, "--model", "qwen3-tiny-odd", expect=["--model", "qwen3-tiny-odd", "--init", self.hf])
        self.refused("x", "--init", initial, expect=["--init", initial, "checkpoint", "--resume"])
        self.refused("x", "--init", self.folder / "absent", expect=["--init", "absent", "config.json"])
        self.refused("x", "--init", ROOT / "configs" / "llama-tiny-odd", expect=["--init", "no weights", "model.safetensors"])
        hf = self.copy("cut")
        content = (hf / "model.safetensors").read_bytes()
        (hf / "model.safetensors").write_bytes(content[:-4])
        self.refused("x", "--init", hf, expect=["--init", "model.safetensors", "truncated"])


if __name__ == "__main__":
    run_cases()
