#!/usr/bin/env python3
"""Tests the templates in tools/cluster with imitations of srun, sbatch, ssh and the program."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from summary import run_cases

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tools" / "cluster"
# Writes its arguments and the variables of a launcher. With WAIT it runs until a signal ends it.
PROGRAM = """#!/usr/bin/env bash
echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, $MASTER_ADDR:$MASTER_PORT: $*" >>"$CALLS"
echo "${LOCAL_WORLD_SIZE:-} ${TESSERA_RUN_ID:-}" >>"$CALLS.runs"
if [[ -n "${WAIT:-}" ]]; then trap 'echo stopped >>"$CALLS"; exit 0' TERM INT; while true; do sleep 0.05; done; fi
exit "${CODE:-0}"
"""
SSH = """#!/usr/bin/env bash
echo "ssh $1" >>"$CALLS"
exec bash -c "$2"
"""
SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do echo "srun $1" >>"$CALLS"; shift; done
exec "$@"
"""
SBATCH = """#!/usr/bin/env bash
echo "sbatch $*" >>"$CALLS"
"""


class Imitated(unittest.TestCase):
    """Calls scripts in a temporary folder, with the imitations first in PATH."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.calls = self.root / "calls"
        self.calls.touch()
        for name, text in (("program", PROGRAM), ("ssh", SSH), ("srun", SRUN), ("sbatch", SBATCH)):
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)

    def environment(self, **more):
        return {**os.environ, "PATH": f"{self.root}:{os.environ['PATH']}", "CALLS": str(self.calls), "TESSERA": str(self.root / "program"),
                "SSH": str(self.root / "ssh"), **more}

    def call(self, script, *arguments, code=0, **more):
        result = subprocess.run([str(CLUSTER / script), *arguments], capture_output=True, text=True, check=False, cwd=self.root,
                                env=self.environment(**more), timeout=60)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stderr

    def lines(self):
        return self.calls.read_text().splitlines()

    def wait_for(self, text):
        for _ in range(400):
            if text in self.calls.read_text():
                return
            time.sleep(0.02)
        self.fail(f"no '{text}' in {self.lines()}")


class Templates(Imitated):
    def test_hosts_start_one_process_for_each_gpu(self):
        self.call("hosts.sh", "--hosts", "one,two", "--gpus", "2", "--", "--out", "a folder", "--wire-rules", "layers.0.*=bf16")
        self.assertEqual(sorted(self.lines())[:4], [
            f"rank {rank} of 4, local {rank % 2}, one:29500: train --backend nccl --out a folder --wire-rules layers.0.*=bf16"
            for rank in range(4)])
        self.assertEqual(sorted(self.lines())[4:], ["ssh one", "ssh one", "ssh two", "ssh two"])

    def test_hosts_draw_an_identity_of_the_run(self):
        runs = pathlib.Path(f"{self.calls}.runs")
        identities = set()
        for _ in range(2):
            runs.unlink(missing_ok=True)
            self.call("hosts.sh", "--hosts", "one,two", "--gpus", "2", "--", "--steps", "1")
            lines = set(runs.read_text().splitlines())
            self.assertEqual(1, len(lines), "the ranks of a run have different variables")
            identities |= lines
        self.assertEqual(2, len(identities), "two runs have the same identity")
        for line in identities:
            self.assertRegex(line, "^2 [0-9a-f]{32}$")

    def test_hosts_return_the_code_of_a_failed_rank(self):
        self.call("hosts.sh", "--hosts", "one", "--gpus", "1", "--", "--steps", "1", code=3, CODE="3")

    def test_a_signal_ends_the_ranks_of_all_hosts(self):
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                self.calls.write_text("")
                script = subprocess.Popen([str(CLUSTER / "hosts.sh"), "--hosts", "one,two", "--gpus", "1", "--", "--steps", "1"],
                                          cwd=self.root, env=self.environment(WAIT="1"))
                self.addCleanup(script.kill)
                for rank in (0, 1):
                    self.wait_for(f"rank {rank} of 2")
                time.sleep(0.2)
                script.send_signal(number)
                self.assertNotEqual(script.wait(timeout=20), 0)
                self.wait_for("stopped\nstopped")

    def test_hosts_refuse_wrong_arguments(self):
        for arguments, text in ((["--gpus", "2", "--", "x"], "--hosts is missing"), (["--hosts", "a", "--", "x"], "--gpus: got ''"),
                                (["--hosts", "a", "--gpus", "0", "--", "x"], "--gpus: got '0'"), (["--hosts", "a", "--gpus", "1"], "expected -- and"),
                                (["--steps", "1"], "unknown argument '--steps'"), (["--hosts"], "--hosts: expected names")):
            self.assertIn(text, self.call("hosts.sh", *arguments, code=2))
        self.assertEqual(self.lines(), [])

    def test_hosts_accept_the_arguments_in_the_documents(self):
        shown = [words for path in sorted((ROOT / "docs").glob("*.md"))
                 for words in re.findall(r"`tools/cluster/hosts.sh ([^`]+)`", path.read_text())]
        self.assertGreater(len(shown), 0)
        for words in shown:
            self.call("hosts.sh", *words.split())

    def test_slurm_starts_a_run(self):
        self.call("slurm.sh", "--steps", "5", "--out", "run", SLURM_JOB_NUM_NODES="3", SLURM_NTASKS_PER_NODE="4")
        self.assertIn("srun --nodes=3", self.lines())
        self.assertIn("srun --ntasks-per-node=4", self.lines())
        self.assertTrue(self.lines()[-1].endswith(": train --backend nccl --steps 5 --out run"), self.lines())
        self.assertNotIn("sbatch", self.calls.read_text())
        self.call("slurm.sh", "--steps", "5", code=3, SLURM_JOB_NUM_NODES="1", CODE="3")
        self.assertIn("start this script with sbatch", self.call("slurm.sh", code=1))

    def test_slurm_resumes_a_run_with_a_checkpoint(self):
        (self.root / "run/checkpoints/step-00000002").mkdir(parents=True)
        self.call("slurm.sh", "--steps", "5", "--out", "run", SLURM_JOB_NUM_NODES="1")
        self.assertTrue(self.lines()[-1].endswith(": train --backend nccl --resume latest --out run"), self.lines())
        self.call("slurm.sh", "--steps", "5", "--out=run", SLURM_JOB_NUM_NODES="1")
        self.assertTrue(self.lines()[-1].endswith(": train --backend nccl --resume latest --out run"), self.lines())

    def test_slurm_submits_itself_again_before_the_time_limit(self):
        job = subprocess.Popen([str(CLUSTER / "slurm.sh"), "--out", "run"], cwd=self.root,
                               env=self.environment(SLURM_JOB_NUM_NODES="2", WAIT="1"))
        self.addCleanup(job.kill)
        self.wait_for("train --backend nccl")
        time.sleep(0.2)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(timeout=20), 0)
        self.assertEqual(self.lines()[-2:], ["stopped", f"sbatch --nodes 2 {CLUSTER / 'slurm.sh'} --out run"])

    def test_scripts_pass_shellcheck(self):
        if not shutil.which("shellcheck"):
            self.skipTest("no shellcheck")
        scripts = sorted(map(str, CLUSTER.glob("*.sh")))
        result = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
        self.assertEqual(result.stdout, "")

    def test_dockerfiles_use_what_exists(self):
        ignored = (ROOT / ".dockerignore").read_text().splitlines()
        self.assertTrue({".venv", "build"} <= set(ignored))
        for name, preset in (("Dockerfile.cpu", "cpu"), ("Dockerfile.cuda", "cuda")):
            text = (CLUSTER / name).read_text()
            self.assertIn(f"docker build -f tools/cluster/{name} ", text)
            self.assertIn(f"./run build {preset} tessera", text)
            self.assertIn(f"--install build/{preset} --prefix /opt/tessera", text)
            self.assertIn(" python3 ", text.split("\nFROM ")[-1], "tessera generate needs Python")
            # Every path that the second stage copies is made in the first.
            for source in re.findall(r"COPY --from=build (\S+)", text):
                self.assertTrue(source in ("/opt/tessera", "/opt/source/.venv") or f"venv {source}" in text, source)
        torch = re.search(r"^torch==(\S+)", (ROOT / "tools/run/requirements.txt").read_text(), re.M)[1]
        self.assertIn(f"torch=={torch}", (CLUSTER / "Dockerfile.cuda").read_text())


# Imitations of the commands of offline.sh. apt-get creates a package in the current folder, and dpkg creates the folders of a package.
APT_GET = """#!/usr/bin/env bash
echo "apt-get $*" >>"$CALLS"
[[ -z "${NO_NETWORK:-}" ]] || exit 100
touch one.deb
"""
APT_CACHE = """#!/usr/bin/env bash
printf 'libfmt-dev\\n  Depends: libfmt9\\nlibxxhash-dev\\n  Depends: libxxhash0\\n'
"""
DPKG = """#!/usr/bin/env bash
mkdir -p "$3/usr/include" "$3/usr/share/doc"
"""
CMAKE = """#!/usr/bin/env bash
echo "cmake $* with $CPLUS_INCLUDE_PATH" >>"$CALLS"
"""


class Offline(Imitated):
    def setUp(self):
        super().setUp()
        for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE), ("dpkg", DPKG), ("cmake", CMAKE)):
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)

    def test_pack_downloads_the_packages_and_their_shared_libraries(self):
        self.call("offline.sh", "pack", "kit")
        [line] = self.lines()
        self.assertRegex(line, r"^apt-get download nlohmann-json3-dev .*libgmock-dev libfmt9 libxxhash0$")
        self.assertTrue((self.root / "kit/usr/include").is_dir())
        self.assertFalse((self.root / "kit/usr/share/doc").exists())
        self.assertIn("apt-get download failed", self.call("offline.sh", "pack", "other", code=2, NO_NETWORK="1"))
        self.assertFalse((self.root / "other").exists())

    def test_build_uses_the_packed_libraries(self):
        (self.root / "kit/usr/include").mkdir(parents=True)
        self.call("offline.sh", "build", "kit", "tessera", "test_ops", TESSERA_TORCH="/torch", CPLUS_INCLUDE_PATH="/mine")
        libraries = self.root.resolve() / "kit/usr"
        self.assertEqual([f"cmake --preset cuda -DTESSERA_TORCH=/torch -DCMAKE_PREFIX_PATH={libraries} -DXXHASH_INCLUDE={libraries}/include "
                          f"with {libraries}/include:/mine",
                          f"cmake --build build/cuda --target tessera test_ops with {libraries}/include:/mine"], self.lines())

    def test_wrong_use_is_refused(self):
        for arguments, message in ((["build", "nothing"], "nothing: expected a folder that 'pack' has written"),
                                   (["pack"], "pack: expected a folder"), ([], "expected 'pack FOLDER' or 'build FOLDER [TARGET...]', got ''"),
                                   (["unpack", "x"], "got 'unpack x'")):
            self.assertIn(message, self.call("offline.sh", *arguments, code=2))
        self.assertEqual([], self.lines())


if __name__ == "__main__":
    run_cases()
