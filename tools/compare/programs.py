"""Starting the program under comparison."""
import os
import pathlib
import shutil
import subprocess

from evidence import Failure

LIMIT_S = 300
GRACE_S = 10  # between asking a program to end and killing it
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
# Both sides get the named models of this checkout: a program knows those of its own by a path that may not exist here.
ENVIRONMENT = {"TESSERA_CONFIGS": str(CONFIGS), **os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def mpirun():
    """The launcher of MPI processes, or None."""
    return shutil.which("mpirun")


def reason(errors):
    """The line of stderr that says why a program ended."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("tessera:")]
    return (said or lines[-1:] or ["no word on stderr"])[0]


def finish(process, limit_s):
    """Output and errors of a process, which ends within the limit in any case."""
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
    """What a program prints. Failure, in one line, where it does not end with 0."""
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
