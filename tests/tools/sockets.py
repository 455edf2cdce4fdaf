"""Reads the ranks of a run, and the listening sockets, descriptors and memory of processes, from /proc."""
import contextlib
import ipaddress
import os
import pathlib
import struct

LISTENS = "0A"  # the state of a socket in /proc/PID/net/tcp


def _address(text):
    """Returns the address of a column such as 0100007F: words of 4 bytes, each in the byte order of this machine."""
    words = [int(text[at:at + 8], 16) for at in range(0, len(text), 8)]
    return ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))


def _files(pid):
    files = []
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # the process has closed the file meanwhile
            files.append(os.readlink(f"/proc/{pid}/fd/{entry}"))
    return files


def listening(pid):
    """Returns the addresses and ports on which the process listens. A process that has ended does not listen."""
    found = []
    with contextlib.suppress(OSError):
        files = set(_files(pid))
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and f"socket:[{words[9]}]" in files:
                    address, port = words[1].split(":")
                    found.append((_address(address), int(port, 16)))
    return found


def descriptors(pid):
    """Returns the number of open files of the process."""
    return len(_files(pid))


def resident_mib(pid):
    """Returns the resident memory of the process in MiB."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


def children(pid):
    """Returns the child processes of a process."""
    with contextlib.suppress(OSError):
        tasks = list(pathlib.Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{pid}\n" in pathlib.Path(f"/proc/{process}/status").read_text():
                found.append(int(process))
    return found


def descendants(pid):
    """Returns the process and all processes that descend from it."""
    found = [pid]
    for parent in found:
        found += children(parent)
    return found


def ranks_of(pid):
    """Returns the processes of tessera among the descendants of a process."""
    ranks = []
    for process in descendants(pid):
        try:
            if pathlib.Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[0].endswith(b"tessera"):
                ranks.append(process)
        except OSError:
            continue
    return ranks
