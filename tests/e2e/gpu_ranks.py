"""Ranks on GPUs, which they share where there are more ranks: the program is the same, slower, and so are its bits.

NCCL refuses two ranks of a group on one GPU of a host. So each gets a host of its own in its eyes (NCCL_HOSTID), and NCCL's
messages travel by sockets; pushes go by the host's name, and ranks of one GPU push too. `nodes` also gives hosts names.
"""
import os
import socket
import subprocess

from program import ENVIRONMENT, command, gpus

GPUS = gpus()
NAMED = ["--uts", "sh", "-c", 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"']
OWN_NAMES = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *NAMED]


def hosts_can_be_named():
    try:
        return subprocess.run([*OWN_NAMES, "other", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def free_port():
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return reserved.getsockname()[1]


def start(ranks, *arguments, nodes=0):
    """A process each, by torchrun's variables. nodes > 0: that many hosts, each of ranks that follow each other."""
    port, programs = free_port(), []
    for rank in range(ranks):
        host = [*OWN_NAMES, f"node{rank * nodes // ranks}"] if nodes else []
        environment = {**ENVIRONMENT, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank % GPUS),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_HOSTID": f"{port}-{rank}",
                       "NCCL_SOCKET_IFNAME": "lo"}
        programs.append(subprocess.Popen([*host, *command(*arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                         text=True, env=environment))
    return programs


def finish(programs, timeout):
    """Waits for them: exit codes, and what each wrote of errors. Those that have not ended then are killed."""
    try:
        errors = [program.communicate(timeout=timeout)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return [program.returncode for program in programs], errors


def train(ranks, *arguments, nodes=0):
    """`tessera train` by `ranks` processes, which must all end well."""
    arguments = ["train", "--backend", "nccl", *arguments]
    codes, errors = finish(start(ranks, *arguments, nodes=nodes), timeout=600)
    if any(codes):
        raise AssertionError(f"tessera {' '.join(map(str, arguments))}\nended with {codes}: {''.join(errors)[-4000:]}")
