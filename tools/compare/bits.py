"""Runs one row of the table on one side, and compares two sides."""
import pathlib
import shutil
from dataclasses import dataclass

import commands
import evidence
from difference import first_difference
from ignored import IGNORED
from programs import mpirun, output_of, visible_gpus


@dataclass(frozen=True)
class Task:
    """Settings that all runs of one call share."""
    common: str            # flags of every training run
    inputs: dict           # the result of inputs.write_inputs
    folder: pathlib.Path   # the folder that runs write to


def read(path):
    """Returns the text of a file of a run. Raises Failure if the file cannot be read."""
    try:
        return path.read_text()
    except OSError as error:
        raise evidence.Failure(f"{path.name}: {error.strerror}") from error


def trained(program, flags, ignored):
    """Trains, and returns the results of the run as a flat table."""
    out = flags["--out"]
    output_of(program, ["train", *commands.words_of(flags)], mpi_ranks=commands.processes_of(flags))
    return {**evidence.of_metrics(read(out / "metrics.jsonl"), ignored),
            **evidence.of_object("summary", read(out / "summary.json"), ignored),
            **evidence.of_checkpoint(output_of(program, ["inspect", out, "--json"])),
            **evidence.of_settings(read(out / "config.json"), ignored)}


def last_checkpoint(out):
    """Returns the newest checkpoint of a run."""
    found = sorted((out / "checkpoints").glob("step-*"))
    if not found:
        raise evidence.Failure("the run wrote no checkpoint")
    return found[-1]


def planned(program, run, task, out, ignored):
    """Returns the output of `tessera plan` or `tessera inspect layout`, and the events of a plan of one step."""
    subcommand, flags = run.task.split(), commands.planned(run, task.inputs)
    if run.task != "plan" or {"--search", "--dead-share"} & {*flags}:
        return evidence.of_object(subcommand[0], output_of(program, [*subcommand, *commands.words_of(flags)]), ignored)
    out.mkdir()
    output = output_of(program, ["plan", *commands.words_of(flags), "--save-events", out / "events.json"])
    return {**evidence.of_object("plan", output, ignored), **evidence.of_events(read(out / "events.json"))}


def evidence_of(program, run, task, out):
    """Returns the results of a row of the table on one side, as a flat table."""
    ignored, before = {*IGNORED, *run.varying}, {}
    if run.task in ("plan", "inspect layout"):
        return planned(program, run, task, out, ignored)
    if run.task == "train" and run.resumes is None:
        return trained(program, commands.training(run, run.flags, task.common, task.inputs, out), ignored)
    if run.resumes is not None:
        before = trained(program, commands.training(run, run.resumes, task.common, task.inputs, out / "before"), ignored)
    stored = task.inputs[run.model] if run.resumes is None else last_checkpoint(out / "before")
    if run.task == "train":
        after = trained(program, commands.resumed(run, task.common, stored, out / "after"), ignored)
        return {**evidence.prefixed("before", before), **evidence.prefixed("resumed", after)}
    output = output_of(program, [run.task, stored, *commands.words_of(commands.stored(run, task.inputs))])
    return {**evidence.prefixed("before", before), **evidence.of_object(run.task, output, ignored)}


def lacking(run, task, program):
    """Returns what the machine lacks for a row of the table. Returns None if the row can run."""
    if "--backend mpi" in run.flags and not mpirun():
        return "no mpirun"
    if "--backend nccl" not in task.common:
        return None
    ranks, gpus = commands.most_ranks_of(run), visible_gpus(program)
    return f"{gpus} GPU, the run needs {ranks}" if ranks > gpus else None


def compare(run, programs, task):
    """Returns (passed, message) for a row of the table. With `passed` None, the row cannot run on this machine."""
    lacks = lacking(run, task, programs[0])
    if lacks:
        return None, f"skipped: {lacks}"
    found = []
    for side, program in zip("AB", programs):
        out = task.folder / run.name / side
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            found.append(evidence_of(program, run, task, out))
        except evidence.Failure as failure:
            return False, f"{side}: {failure}"
    different = first_difference(*found)
    return different is None, str(different) if different else "equal"
