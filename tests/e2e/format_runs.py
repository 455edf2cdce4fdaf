"""Small runs in number formats. No size of the model is divisible by a tile size."""
import json
import math
import os

from program import ROOT, bits, run, scratch, tessera, write_tokens

FORMATS = ("fp8", "fp8_block", "mxfp8", "nvfp4")
STEPS = 4
FULL = os.environ.get("TESSERA_E2E") == "full"
# These sizes are not divisible by 16, 32 or 128, the sizes of tiles. 4-bit numbers need even sizes.
SIZES = {"hidden_size": 72, "intermediate_size": 332, "num_hidden_layers": 2, "num_attention_heads": 6,
         "num_key_value_heads": 2, "head_dim": 12}
POISON = ("--debug-poison", "on", "--gather-budget", "min", "--reduce-budget", "min")


def chosen(runs, turn):
    """Returns the first run, which is the reference, and one of the others, chosen by `turn`. A full test takes all runs."""
    return runs if FULL else [runs[0], runs[1 + turn % (len(runs) - 1)]]


class FormatRuns:
    """A mixin for a TestCase. The name of the class is the name of the folder."""
    @classmethod
    def setUpClass(cls):
        cls.folder = scratch(cls.__name__.lower())
        cls.finished = {}  # {settings: (folder, bits)}
        cls.data = write_tokens(cls.folder / "tokens", 131)
        cls.model = cls.folder / "model.json"
        cls.model.write_text(json.dumps(json.loads((ROOT / "configs" / "llama-tiny-odd" / "config.json").read_text()) | SIZES))

    def flags(self, name, mesh, wire, *more, dtype="bf16"):
        tp, gtp, dp = mesh
        return ["train", "--model", self.model, "--data", self.data, "--global-batch", 12, "--seq-len", 32, "--seed", 7,
                "--dtype", dtype, "--wire-format", wire, "--tp", tp, "--gtp", gtp, "--dp", dp, "--out", self.folder / name,
                *more]

    def train(self, name, mesh, wire, *more, steps=STEPS, backend="local"):
        """Trains once for each set of flags. Later calls with the same flags create a link to the folder of the first run."""
        key = (mesh, wire, more, steps, backend)
        if key in self.finished:
            folder, found = self.finished[key]
            if not (self.folder / name).exists():
                (self.folder / name).symlink_to(folder)
            return found
        tessera(*self.flags(name, mesh, wire, "--steps", steps, "--backend", backend, *more),
                mpi_ranks=math.prod(mesh) if backend == "mpi" else None)
        self.finished[key] = self.folder / name, bits(self.folder / name)
        return self.finished[key][1]

    def check_resumed(self, name, wire, *flags):
        """Checks that a run that resumes after step 2 on another mesh has the bits of the whole run. Returns the folder of the
        resumed run, and the bits of the whole run."""
        whole = self.train(f"whole-{name}", (1, 2, 1), wire, *flags)
        self.train(f"part-{name}", (1, 3, 1), wire, "--schedule-steps", STEPS, *flags, steps=2)
        out = self.folder / f"rest-{name}"
        tessera("train", "--resume", self.folder / f"part-{name}" / "checkpoints" / "step-00000002", "--gtp", 4, "--steps", STEPS,
                "--out", out)
        rest = bits(out)
        self.assertEqual(whole["tensors"], rest["tensors"], name)
        self.assertEqual(whole["steps"][2:], rest["steps"], name)
        return out, whole

    def refused(self, *more, expect, wire="mxfp8", mesh=(1, 2, 1), **options):
        result = run(*self.flags("refused", mesh, wire, "--steps", 1, *more, **options))
        self.assertEqual(2, result.returncode, result.stderr)
        for word in expect:
            self.assertIn(word, result.stderr)
        self.assertEqual(1, result.stderr.count("\n"), result.stderr)
        self.assertFalse((self.folder / "refused").exists())
