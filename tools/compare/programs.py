"""Starts the compared programs."""
import functools
import os
import pathlib
import re
import shutil
import subprocess

from evidence import Failure

LIMIT_S = 300
GRACE_S = 10  # time between SIGTERM and SIGKILL
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
# Both sides use the named models of this checkout, because the path that is compiled into a program may not exist here.
ENVIRONMENT = {"TESSERA_CONFIGS": str(CONFIGS), **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun():
    """Returns the launcher of MPI processes. Returns None if it is not installed."""
    return shutil.which("mpirun")


@functools.cache
def visible_gpus(program):
    """Returns the number of GPUs that the program can use, from its error for too many ranks. Returns 0 without such an error."""
    done = subprocess.run([str(program), "train", "--backend", "nccl", "--ranks", "1000000"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace", env=ENVIRONMENT, timeout=LIMIT_S, check=False)
    found = re.search(r"expected 1 to (\d+): the number of visible GPUs", done.stderr)
    return int(found[1]) if found else 0


def reason(errors):
    """Returns the line of stderr that contains the error of the program."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("tessera:")]
    return (said or lines[-1:] or ["stderr is empty"])[0]


def finish(process, limit_s):
    """Returns stdout and stderr of a process. Ends the process if it does not end within the limit."""
    try:
        return process.communicate(timeout=limit_s)
    except BaseException:
        process.terminate()
        try:
            process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


def output_of(program, arguments, mpi_ranks=None, limit_s=LIMIT_S):
    """Returns the output of a program. Raises Failure, with a message of one line, if the exit code is not 0."""
    launcher = [mpirun(), "--oversubscribe", "-n", str(mpi_ranks)] if mpi_ranks else []
    command = [*launcher, str(program), *map(str, arguments)]
    try:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              errors="replace", env=ENVIRONMENT) as process:
            output, errors = finish(process, limit_s)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(f"tessera {arguments[0]} did not end within {limit_s} s") from error
    if process.returncode != 0:
        raise Failure(f"tessera {arguments[0]} ended with {process.returncode}: {reason(errors)}")
    return output
