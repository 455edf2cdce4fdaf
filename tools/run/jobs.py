"""Runs jobs on the GPUs of a machine, each with a time limit, and writes their output to one log.

    python3 tools/run/gpu_tests.py | python3 tools/run/jobs.py --gpus 2 --seconds 540 --log jobs.log -

A line of the file (- for stdin) is a job: NAME LIMIT_S GPUS COMMAND. The command runs in bash, in the folder of the checkout,
and sees only its own GPUs (CUDA_VISIBLE_DEVICES). If this variable is set for jobs.py, the jobs share the GPUs that it lists.
OpenMP uses one thread in each process unless OMP_NUM_THREADS is set. A job with 0 GPUs runs alone. Jobs start in the order of the file
(--first changes the order), each as soon as enough GPUs are free. With --not-passed-in LOG, jobs that passed in an earlier run
do not run again. A job fails if its command ends with another code than 0 or does not end within LIMIT_S seconds; the command
and all processes that it started are then killed. After --seconds no job starts, and running jobs are killed. A job that needs
more GPUs than --gpus does not start. The last line is `N passed, N failed, N skipped`; a skipped job did not start, or its
command ended with 77. The exit code is 0 only if no job failed and every job started.
"""
import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
SHOWN_LINES = 20  # of the output of a failed job, on stdout; the log contains the whole output


class BadInput(ValueError):
    pass


@dataclass(frozen=True)
class Job:
    name: str
    limit_s: float
    gpus: int
    command: str


@dataclass
class Running:
    job: Job
    gpus: list
    process: subprocess.Popen
    output: pathlib.Path
    start: float
    end: float


def parse_job(line, where):
    """Returns the job of a line, or no job for an empty line or a comment."""
    words = line.split(maxsplit=3)
    if not words or words[0].startswith("#"):
        return None
    try:
        name, limit, gpus, command = words
        job = Job(name, float(limit), int(gpus), command)
    except ValueError:
        raise BadInput(f"{where}: expected NAME LIMIT_S GPUS COMMAND, got '{line.strip()}'") from None
    if not (job.limit_s > 0 and job.gpus >= 0 and re.fullmatch(r"[\w.-]+", job.name)):
        raise BadInput(f"{where}: expected a name of letters, digits, '.', '_' and '-', a limit above 0 and a number of GPUs "
                     f"of at least 0, got '{line.strip()}'")
    return job


def parse_jobs(text, name, only=""):
    """Returns the jobs of a text whose names contain a match of the expression `only`. `name` is the name of the text in
    messages. Raises BadInput for a line that is not a job, and for a name that occurs twice."""
    jobs = {}
    for number, line in enumerate(text.splitlines(), 1):
        job = parse_job(line, f"{name}:{number}")
        if job and job.name in jobs:
            raise BadInput(f"{name}:{number}: expected names that differ, got '{job.name}' twice")
        if job and re.search(only, job.name):
            jobs[job.name] = job
    return list(jobs.values())


def passed_in(text):
    """Returns the names of the jobs that passed according to the text of a log."""
    return set(re.findall(r"(?m)^==== (\S+): passed \(", text))


@dataclass
class Runner:
    """Runs jobs for at most `seconds` seconds. The folder receives a file for the output of each job."""
    gpus: list  # names as in CUDA_VISIBLE_DEVICES
    seconds: float
    folder: pathlib.Path
    started: float = field(default_factory=time.monotonic)
    running: list = field(default_factory=list)

    def run(self, jobs):
        """Runs the jobs and yields (job, status, seconds, output). A status is 'passed', 'skipped', 'not started', or describes why
        the job failed. A job that did not start has no output."""
        waiting = list(jobs)
        try:
            while waiting or self.running:
                for job in [job for job in waiting if job.gpus > len(self.gpus) or self.left() <= 0]:
                    waiting.remove(job)
                    yield job, "not started", 0.0, None
                while waiting and self.fits(waiting[0]):
                    self.start(waiting.pop(0))
                time.sleep(0.05)
                for running in list(self.running):
                    status = self.status_of(running)
                    if status:
                        self.running.remove(running)
                        yield running.job, status, time.monotonic() - running.start, running.output
        finally:
            for running in self.running:
                kill(running.process)

    def left(self):
        return self.started + self.seconds - time.monotonic()

    def free(self):
        used = {gpu for running in self.running for gpu in running.gpus}
        return [gpu for gpu in self.gpus if gpu not in used]

    def fits(self, job):
        if any(running.job.gpus == 0 for running in self.running):
            return False
        return len(self.free()) >= job.gpus if job.gpus else not self.running

    def start(self, job):
        gpus = self.free()[:job.gpus]
        output = self.folder / f"{job.name}.txt"
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1"}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        with open(output, "wb") as stream:
            process = subprocess.Popen(["bash", "-c", job.command], stdout=stream, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL, cwd=ROOT, env=environment, start_new_session=True)
        now = time.monotonic()
        self.running.append(Running(job, gpus, process, output, now, now + min(job.limit_s, self.left())))

    def status_of(self, running):
        """Returns the status of a job that has ended or reached its limit."""
        code = running.process.poll()
        if code is None and time.monotonic() < running.end:
            return None
        kill(running.process)  # also ends processes that the command has left behind
        if code is None:
            return f"failed: no end after {time.monotonic() - running.start:.0f} s"
        return {0: "passed", SKIPPED: "skipped"}.get(code, f"failed: code {code}")


def gpu_names(count):
    """Returns the first GPUs that CUDA_VISIBLE_DEVICES lists, or 0 to count - 1."""
    if count < 0:
        raise BadInput(f"--gpus: got {count}, expected 0 or more")
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = listed.split(",") if listed else [str(gpu) for gpu in range(count)]
    if count > len(names):
        raise BadInput(f"--gpus: got {count}, expected at most the GPUs of CUDA_VISIBLE_DEVICES={listed}")
    return names[:count]


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the file of jobs; - for stdin")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (1)")
    parser.add_argument("--seconds", type=float, default=3600, help="time for all jobs (3600)")
    parser.add_argument("--only", default="", help="expression that the name of a job must contain")
    parser.add_argument("--first", default="", help="expression; jobs whose names contain a match start before the others")
    parser.add_argument("--not-passed-in", type=pathlib.Path, nargs="+", default=[], metavar="LOG",
                        help="logs of earlier runs; leaves out the jobs that passed in one of them")
    parser.add_argument("--log", type=pathlib.Path, default=ROOT / "build" / "jobs.log", help="receives all output (build/jobs.log)")
    arguments = parser.parse_args()
    try:
        gpus = gpu_names(arguments.gpus)
        text = sys.stdin.read() if arguments.file == "-" else pathlib.Path(arguments.file).read_text()
        passed = set().union(*(passed_in(log.read_text(errors="replace")) for log in arguments.not_passed_in))
        selected = parse_jobs(text, arguments.file, arguments.only)
        jobs = [job for job in selected if job.name not in passed]
        jobs.sort(key=lambda job: not re.search(arguments.first, job.name))
    except (BadInput, OSError, re.error) as error:
        sys.exit(f"jobs.py: {error}")
    if not selected:
        sys.exit(f"jobs.py: {arguments.file} has no job whose name contains '{arguments.only}'")
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="jobs-"))
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    all_started = True
    with open(arguments.log, "w") as log:
        for job, status, seconds, output in Runner(gpus, arguments.seconds, folder).run(jobs):
            line = f"{job.name}: {status} ({seconds:.1f} s)"
            text = output.read_text(errors="replace") if output else ""
            log.write(f"==== {line}\n$ {job.command}\n{text}\n")
            log.flush()
            if output:
                output.unlink()
            print(line, flush=True)
            all_started = all_started and output is not None
            kind = "skipped" if status == "not started" else status.split(":")[0]
            counts[kind] += 1
            if kind == "failed":
                print("\n".join("    " + shown for shown in text.splitlines()[-SHOWN_LINES:]), flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return int(counts["failed"] > 0 or not all_started)


if __name__ == "__main__":
    sys.exit(main())
