"""Runs a program in forks of one started process, which has loaded its libraries (tests/preload/fork_server.cpp)."""
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time


class Forked:
    """A process that the server started. It has the methods of subprocess.Popen that the tests use."""

    def __init__(self, connection, process):
        self.connection, self.pid, self.returncode = connection, process, None

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self.connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            status = self.connection.recv(4, socket.MSG_WAITALL)
            if len(status) < 4:
                raise ConnectionError(f"the fork server ended before process {self.pid}")
            self.connection.close()
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(status, sys.byteorder))
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """`library` is the preloaded library. The program run_in_fork is in its folder. The server's environment is `environment`. The
    server ends with this process."""

    def __init__(self, program, library, environment):
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/socket"
        self.client = library.with_name("run_in_fork")
        variables = {**environment, "LD_PRELOAD": str(library), "TESSERA_TEST_SERVER": self.path}
        self.program = subprocess.Popen([program], env=variables, stdin=subprocess.PIPE)

    def connect(self):
        while True:
            try:
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(self.path)
                return connection
            except (FileNotFoundError, ConnectionRefusedError):
                connection.close()
                if self.program.poll() is not None:
                    raise
                time.sleep(0.01)

    def command(self, line):
        """Returns a command line that runs `line` in a fork. The fork has the folder and the variables of the process that runs the
        command line."""
        self.connect().close()  # waits until the server runs
        return [str(self.client), self.path, *line]

    def start(self, line, output, errors, variables=()):
        """Starts the program with the words of `line`. `variables` (a dict) are added to its environment."""
        changes = [f"{name}={value}" for name, value in dict(variables).items()]
        text = b"".join(os.fsencode(string) + b"\0" for string in (os.getcwd(), *changes, "", *line))
        connection = self.connect()
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(connection, [len(text).to_bytes(4, sys.byteorder)], [file.fileno() for file in (nothing, output, errors)])
        connection.sendall(text)
        process = connection.recv(4, socket.MSG_WAITALL)
        if len(process) < 4:
            connection.close()
            raise ConnectionError("the fork server did not start the process")
        return Forked(connection, int.from_bytes(process, sys.byteorder))

    def run(self, line, timeout, variables=()):
        """Like subprocess.run with captured text."""
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            process = self.start(line, output, errors, variables)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            texts = []
            for file in (output, errors):
                file.seek(0)
                texts.append(file.read().decode())
        return subprocess.CompletedProcess(line, code, *texts)
