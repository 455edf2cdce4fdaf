#!/usr/bin/env python3
"""Tests imported Hugging Face folders: training without the file of the model, values that are not finite, ambiguous folders."""
import json
import shutil
import struct
import unittest

from program import metrics, run, scratch, tessera, write_tokens
from summary import run_cases


class Imports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch("imports")
        cls.data = write_tokens(cls.folder / "tokens", 131)
        tessera("train", "--model", "llama-tiny-odd", "--data", cls.data, "--seq-len", 32, "--steps", 0, "--out",
                cls.folder / "initial")
        tessera("convert", cls.folder / "initial", cls.folder / "hf")

    def copy(self, name):
        return shutil.copytree(self.folder / "hf", self.folder / name)

    def put_nan(self, folder, tensor):
        path = folder / "model.safetensors"
        content = bytearray(path.read_bytes())
        length = struct.unpack("<Q", content[:8])[0]
        begin, _ = json.loads(content[8:8 + length])[tensor]["data_offsets"]
        content[8 + length + begin:8 + length + begin + 8] = struct.pack("<2f", float("nan"), float("-inf"))
        path.write_bytes(content)

    def train(self, checkpoint, out, *flags):
        return run("train", "--resume", checkpoint, "--data", self.data, "--seq-len", 32, "--global-batch", 4, "--steps", 2,
                   "--out", out, *flags)

    def refused(self, result, *words):
        self.assertEqual(2, result.returncode, result.stderr)
        self.assertEqual(1, len(result.stderr.splitlines()), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_a_checkpoint_is_trained_without_the_file_of_its_model(self):
        """The run can also be resumed, and another --dtype is refused with the expected type."""
        hf = self.copy("moved")
        tessera("convert", hf, self.folder / "fp32")
        tessera("convert", hf, self.folder / "bf16", "--dtype", "bf16")
        expected = self.folder / "expected"
        self.assertEqual(0, self.train(self.folder / "fp32", expected, "--model", hf).returncode)
        shutil.rmtree(hf)
        out = self.folder / "trained"
        result = self.train(self.folder / "fp32", out)
        self.assertEqual(0, result.returncode, result.stderr)
        self.assertEqual([line["loss"] for line in metrics(expected)], [line["loss"] for line in metrics(out)])
        tessera("train", "--resume", "latest", "--out", out, "--steps", 3)
        self.assertEqual(3, metrics(out)[-1]["step"])
        refused = self.folder / "refused"
        self.refused(self.train(self.folder / "bf16", refused), "--dtype: got fp32, expected bf16")
        self.assertFalse(refused.exists())
        self.assertEqual(0, self.train(self.folder / "bf16", self.folder / "trained-bf16", "--dtype", "bf16").returncode)

    def test_values_that_are_not_finite(self):
        """`convert` prints a warning for each tensor and succeeds. A run with such weights reports NaN in both output files."""
        hf = self.copy("not-finite")
        self.put_nan(hf, "model.norm.weight")
        result = run("convert", hf, self.folder / "with-nan")
        self.assertEqual(0, result.returncode, result.stderr)
        line = "tensor 'model.norm.weight': 1 values are NaN, 1 are infinite"
        self.assertEqual([f"tessera: warning: {line}"], result.stderr.splitlines())
        result = run("convert", self.folder / "with-nan", self.folder / "again", "--json")
        self.assertIn(line, result.stderr)
        self.assertEqual([{"tensor": "model.norm.weight", "nan": 1, "infinite": 1}], json.loads(result.stdout)["non_finite"])
        self.assertEqual("", run("convert", self.folder / "initial", self.folder / "finite").stderr)
        out = self.folder / "not-finite-run"
        result = self.train(self.folder / "with-nan", out, "--model", hf, "--valid", self.data)
        self.assertEqual(0, result.returncode, result.stderr)
        last, summary = metrics(out)[-1], json.loads((out / "summary.json").read_text())
        self.assertEqual(("NaN", "NaN"), (last["loss"], last["valid_loss"]))
        self.assertEqual((last["loss"], last["valid_loss"]), (summary["loss"], summary["valid_loss"]))

    def test_ambiguous_folders_are_refused(self):
        hf = self.copy("two")
        tessera("convert", self.folder / "initial", self.folder / "shards", "--max-shard-size", "20KB")
        for path in (self.folder / "shards").glob("model*"):
            shutil.copy(path, hf)
        self.refused(run("convert", hf, self.folder / "x"), "holds model.safetensors and model.safetensors.index.json")
        self.assertFalse((self.folder / "x").exists())

    def test_control_bytes_of_files_are_escaped(self):
        hf = self.copy("bytes")
        header = b'{"a\xff\x1b[2J":1}'
        (hf / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        self.refused(run("convert", hf, self.folder / "y"), "\\xff")
        header = b'{"a\\n\\u001b[2J":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
        (hf / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        self.refused(run("convert", hf, self.folder / "y"))

    def test_data_with_a_tiny_share(self):
        """A share of 1e-9 is accepted, although a short run does not read the data set. A share that no run reads is refused."""
        flags = ["train", "--model", "llama-tiny-odd", "--seq-len", 32, "--steps", 0]
        out = self.folder / "rare"
        tessera(*flags, "--data", "1e-9", self.data, "1", self.data, "--out", out)
        state = json.loads((out / "config.json").read_text())
        self.assertEqual([1, 10**9], [entry["share"] for entry in state["data"]])
        self.refused(run(*flags, "--data", "1.3e-20", self.data, "1", self.data, "--out", self.folder / "never"),
                     "--data: weight 1.3e-20")


if __name__ == "__main__":
    run_cases()
