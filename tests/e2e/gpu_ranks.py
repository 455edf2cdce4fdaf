"""Starts ranks on GPUs. If there are more ranks than GPUs, ranks share a GPU. Results then have the same bits, but take longer.

NCCL refuses two ranks of a group on one GPU of a host. Ranks that share a GPU therefore have their own NCCL_HOSTID, and NCCL sends
messages over sockets. Pushes depend on the name of the host, so ranks that share a GPU also push. `nodes` > 0 also sets the names of hosts.
"""
import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time

from program import ENVIRONMENT, SERVER, TESSERA, command, gpus

GPUS = gpus()
NAMED = "import os, socket, sys; socket.sethostname(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])"
OWN_NAMES = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--uts", sys.executable, "-c", NAMED]


def hosts_can_be_named():
    try:
        return subprocess.run([*OWN_NAMES, "other", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def free_port():
    """Returns a free port below the ports that the system assigns to connections, so that no connection takes the port."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as reserved, contextlib.suppress(OSError):
            reserved.bind(("127.0.0.1", port))
            return port
    raise OSError("found no free port in 100 attempts from 20000 to 32000")


def torchrun_variables(rank, ranks, port):
    """Returns the variables of a rank that torchrun sets if rank 0 hosts the store."""
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % GPUS), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}


class Ranks:
    """Starts one process for each rank, with the variables of a launcher. The processes run tessera, or `program`. With nodes > 0,
    they run on that many simulated hosts, each with consecutive ranks. `environment` replaces the environment of this process.
    `launcher` is a function as torchrun_variables."""

    def __init__(self, ranks, *arguments, nodes=0, program=None, environment=None, launcher=torchrun_variables, port=None):
        port, self.programs = port or free_port(), []
        self.errors = [tempfile.TemporaryFile("w+") for _ in range(ranks)]
        line = [str(program), *map(str, arguments)] if program else command(*arguments)
        for rank, errors in enumerate(self.errors):
            host = [*OWN_NAMES, f"node{rank * nodes // ranks}"] if nodes else []
            variables = {**launcher(rank, ranks, port), "NCCL_SOCKET_IFNAME": "lo"}
            if ranks > GPUS:
                variables["NCCL_HOSTID"] = f"{port}-{rank}"
            with open(os.devnull, "wb") as nothing:
                output = errors if program else nothing
                if SERVER and line[0] == TESSERA and not host and environment is None:
                    self.programs.append(SERVER.start(line, output, errors, variables))
                else:
                    variables = {**(environment or ENVIRONMENT), **variables}
                    self.programs.append(subprocess.Popen([*host, *line], stdout=output, stderr=errors, env=variables))

    def all_run(self):
        return all(program.poll() is None for program in self.programs)

    def finish(self, timeout):
        """Waits up to `timeout` seconds and then kills the remaining processes. Returns the exit codes and the stderr of each."""
        end = time.monotonic() + timeout
        try:
            for program in self.programs:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    program.wait(max(0, end - time.monotonic()))
        finally:
            for program in self.programs:
                program.kill()
                program.wait()
        texts = []
        for errors in self.errors:
            with errors:
                errors.seek(0)
                texts.append(errors.read())
        return [program.returncode for program in self.programs], texts


def train(ranks, *arguments, nodes=0, variables=None):
    """Runs `tessera train` with `ranks` processes and changes of the environment. Raises AssertionError unless all exit with code 0."""
    arguments = ["train", "--backend", "nccl", *arguments]
    environment = {**ENVIRONMENT, **variables} if variables else None
    codes, errors = Ranks(ranks, *arguments, nodes=nodes, environment=environment).finish(timeout=300)
    if any(codes):
        raise AssertionError(f"tessera {' '.join(map(str, arguments))}\nended with {codes}: {''.join(errors)[-4000:]}")
