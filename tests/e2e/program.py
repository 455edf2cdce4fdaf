"""The program under test, its processes and its data, shared by the end-to-end tests."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

from fork_server import ForkServer
from stored_tensors import tensor_hashes

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "tools"), str(ROOT / "python")]
TESSERA = os.environ.get("TESSERA", str(ROOT / "build" / "cpu" / "apps" / "tessera"))
if not os.path.exists(TESSERA):
    print(f"skipped: {TESSERA} is not built")
    sys.exit(77)

# A preloaded library that makes file systems slow or full. Environment variables control it (tests/preload).
AWKWARD_FILES = pathlib.Path(TESSERA).parents[1] / "tests" / "libawkward_files.so"
MPIRUN = shutil.which("mpirun")
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# With this environment libtorch allocates GPU memory with cudaMalloc only. The driver may refuse its other methods.
WITHOUT_SEGMENTS = {name: value for name, value in ENVIRONMENT.items() if not name.endswith("ALLOC_CONF")}


def scratch(name):
    folder = pathlib.Path(os.environ.get("TEST_TMP") or ROOT / "build" / "e2e") / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def launcher(mpi_ranks):
    return [MPIRUN, "--oversubscribe", "-n", str(mpi_ranks)] if mpi_ranks else []


def command(*arguments, mpi_ranks=None):
    return [*launcher(mpi_ranks), TESSERA, *map(str, arguments)]


# Runs the program in forks of one process, because libtorch takes long to load. None: without the preloaded library.
FORK_SERVER = pathlib.Path(TESSERA).parents[1] / "tests" / "libfork_server.so"
SERVER = ForkServer(TESSERA, FORK_SERVER, ENVIRONMENT) if FORK_SERVER.exists() else None


def starts_itself(line):
    """Returns whether the program may start its ranks, which run the command line of the process. A fork has another one."""
    return "nccl" in line or "bench" in line


def forked(line):
    """Returns a command line that runs the program with the words of `line`. It uses a fork if the server runs."""
    return SERVER.command(line) if SERVER and not starts_itself(line) else line


def run(*arguments, mpi_ranks=None, timeout=1200, **variables):
    """Runs the program, with changes of its environment. Variables that libraries read when they are loaded have no effect."""
    line = command(*arguments)
    if mpi_ranks is None and SERVER and not starts_itself(line):
        return SERVER.run(line, timeout, variables)
    return subprocess.run([*launcher(mpi_ranks), *forked(line)], capture_output=True, text=True, check=False,
                          env={**ENVIRONMENT, **variables}, timeout=timeout)


def mesh_flags(mesh):
    """Returns the flags of a mesh with experts: (tp, gtp, dp, etp, ep, egtp)."""
    tp, gtp, dp, etp, ep, egtp = mesh
    flags = ["--tp", tp, "--gtp", gtp, "--dp", dp, "--etp", etp, "--ep", ep, "--egtp", egtp]
    return flags + (["--sequence-parallel", "on"] if tp > 1 else [])


def tessera(*arguments, mpi_ranks=None):
    result = run(*arguments, mpi_ranks=mpi_ranks)
    if result.returncode != 0:
        raise AssertionError(f"tessera {' '.join(map(str, arguments))}\nended with {result.returncode}: {result.stderr[-2000:]}")
    return result.stdout


def gpus():
    """Returns the number of GPUs that the program can use, from the error for too many ranks. Exits on any other error."""
    said = run("train", "--backend", "nccl", "--ranks", 10**6)
    found = re.search(r"expected 1 to (\d+): the number of visible GPUs", said.stderr)
    if found:
        return int(found[1])
    if "this build has no CUDA" in said.stderr:
        return 0
    if re.search(r"error while loading shared libraries: lib(cu|nccl|nv|c10_cuda|torch_cuda)", said.stderr):
        print(f"skipped: {said.stderr.strip()}")
        sys.exit(77)
    sys.exit(f"{TESSERA} ended with {said.returncode}, expected a line with the number of GPUs: {said.stderr}")


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def bits(out):
    """Returns the results that define equality of two runs: every loss, norm, and logical tensor of the checkpoint."""
    return {"steps": [(line["step"], line["loss"], line["grad_norm"]) for line in metrics(out)], "tensors": tensor_hashes(out)}


def programs_with(word):
    """Returns the processes of tessera whose command line contains the word."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = pathlib.Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(word).encode() in words and words[0].endswith(b"tessera"):
            found.append(int(pid))
    return sorted(found)


def pause(processes, seconds):
    """Stops the processes, given by their ids, for some time, as Ctrl-Z and `scontrol suspend` do. They stop and resume one after
    the other."""
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
            time.sleep(0.05)
        if number == signal.SIGSTOP:
            time.sleep(seconds)


def write_tokens(prefix, vocab_size, documents=60):
    """Writes documents of tokens. Most tokens follow from the token before, so that a model can learn them."""
    state, texts = 12345, []
    for document in range(documents):
        token, text = document % vocab_size, []
        for _ in range(20 + document * 7 % 90):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            token = (token * 7 + 3) % vocab_size if state >> 62 else (state >> 33) % vocab_size
            text.append(token)
        texts.append(text)
    return write_documents(prefix, texts)


def write_documents(prefix, texts):
    """Writes a data set of 16-bit tokens without numpy."""
    lengths = [len(text) for text in texts]
    offsets = [2 * sum(lengths[:i]) for i in range(len(texts))]
    count = len(texts)
    pathlib.Path(f"{prefix}.bin").write_bytes(b"".join(struct.pack(f"<{len(text)}H", *text) for text in texts))
    pathlib.Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *offsets) + struct.pack(f"<{count + 1}q", *range(count + 1)))
    return prefix
