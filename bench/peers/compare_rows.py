"""The programs that compare_gpus.py runs, the rows that it prints, and what each side of a row stores."""
import dataclasses
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESSERA, TESSERA_EP = "tessera", "tessera, ep"
ON, OFF, ONE_GPU = "FSDP2, resharding on", "FSDP2, resharding off", "PyTorch, one GPU"
TP_ON, TP_OFF = "DTensor TP, async on", "DTensor TP, async off"
MOMENTS = {"fp32": "", "bf16": ", bf16 moments"}
# States of updates.py.
STATES = {"fp32": "", "fp32-compiled": ", compiled fp32 update", "bf16-moments": ", compiled bf16 moments", "bf16": ", all bf16"}


@dataclasses.dataclass(frozen=True)
class Row:
    """Compares Tessera's runs with one type of moments with a peer in the fastest of some states."""
    label: str
    moments: str
    states: tuple


BOTH_FP32 = Row("fp32 moments on both sides", "fp32", ("fp32", "fp32-compiled"))
BOTH_BF16 = Row("bf16 moments on both sides, or the peer's fp32 update if it is faster", "bf16", ("bf16-moments", "fp32"))
LESS_WORK = Row("bf16 moments beside an all-bf16 peer: less work for the peer, no goal for dense models", "bf16", ("bf16",))


@dataclasses.dataclass(frozen=True)
class Program:
    """kind: the name without the type of moments or the state. moments: of Tessera, None for a peer. state: of a peer."""
    command: list
    kind: str
    moments: str | None = None
    state: str | None = None

    @property
    def name(self):
        return self.kind + (MOMENTS[self.moments] if self.moments else STATES[self.state])


def rows_of(moments):
    """Returns the rows of --moments."""
    return {"fp32": [BOTH_FP32], "bf16": [BOTH_BF16, LESS_WORK], "both": [BOTH_FP32, BOTH_BF16, LESS_WORK]}[moments]


def has_experts(model):
    """Reads the config.json of --model: a file, a folder that holds one, or a name under configs/."""
    path = pathlib.Path(model) if pathlib.Path(model).exists() else ROOT / "configs" / model
    path = path / "config.json" if path.is_dir() else path
    return path.exists() and bool({"num_local_experts", "num_experts"} & set(json.loads(path.read_text())))


def tessera_programs(options, task, extra, moments):
    start = [options.tessera, "bench", "step", *task, "--tp", options.tp, "--gtp", options.gpus // options.tp, "--dtype", "bf16",
             "--moments", moments, "--json"]
    if options.tp > 1:
        start += ["--sequence-parallel", "on"]
    if options.has_experts:
        start += ["--routing", options.routing]
    meshes = {TESSERA: []}
    if options.has_experts and options.gpus > 1:
        meshes = {TESSERA: ["--egtp", options.gpus], TESSERA_EP: ["--ep", options.gpus]}
    return [Program([*start, *mesh, *extra], kind, moments=moments) for kind, mesh in meshes.items()]


def peer_programs(options, task, state):
    peers = ROOT / "bench" / "peers"
    routing = ["--routing", options.routing] if options.has_experts else []
    if options.gpus == 1:
        return [Program([options.python, peers / "one_gpu.py", *task, *routing, "--state", state], ONE_GPU, state=state)]
    start = [options.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", options.gpus]
    if options.tp > 1:
        return [Program([*start, peers / "tensor_parallel.py", *task, "--async", value], kind, state=state)
                for kind, value in ((TP_ON, "on"), (TP_OFF, "off"))]
    program = peers / ("experts.py" if options.has_experts else "fsdp2.py")
    return [Program([*start, program, *task, *routing, "--state", state, "--reshard", value], kind, state=state)
            for kind, value in ((ON, "on"), (OFF, "off"))]


def programs_of(options, extra):
    """Returns {name: program} of all rows, Tessera's first."""
    task = ["--model", options.model, "--seq-len", options.seq_len, "--micro-batch", options.micro_batch,
            "--steps", options.steps, "--warmup", options.warmup]
    if options.layers:
        task += ["--layers", options.layers]
    rows = rows_of(options.moments)
    programs = []
    for moments in dict.fromkeys(row.moments for row in rows):
        programs += tessera_programs(options, task, extra, moments)
    for state in dict.fromkeys(state for row in rows for state in row.states):
        # With several GPUs, FSDP2 converts gradients itself, so that a compiled update in fp32 saves little.
        if state != "fp32-compiled" or options.gpus == 1:
            programs += peer_programs(options, task, state)
    return {program.name: program for program in programs}


def stored_bytes(program, result, extra):
    """Returns the bytes of a parameter that a program stores, {"weight", "master", "moments"}, as far as they are known.

    A peer measures them. Tessera reports its moments. Its weights are bf16, and their masters are split unless flags change this.
    """
    if program.state:
        return dict(result.get("stored_bytes") or {})
    rules = result.get("update_rules") or []
    count = sum(rule["parameters"] for rule in rules)
    stored = {"moments": sum(rule["state_bytes"] for rule in rules) / count} if count else {}
    words = [part for word in map(str, extra) for part in word.split("=", 1)]
    if stored and not any(word.startswith(("--wire", "--dtype")) for word in words):
        masters = dict(zip(words, words[1:])).get("--masters", "auto")
        stored = {"weight": 2, "master": 4 if masters == "fp32" else 2} | stored
    return stored


def stored_text(stored):
    parts = [f"{name} {stored[name]:.3g}" if name in stored else f"{name} unknown" for name in ("weight", "master", "moments")]
    return ", ".join(parts) + " bytes a parameter"


def row_results(row, programs, summary):
    """Returns the figures of a row. speed_to_*: a peer's step time / Tessera's (above 1: Tessera is faster). memory_to_*: Tessera's
    memory / the peer's."""
    ours = {program.kind: name for name, program in programs.items() if program.moments == row.moments and name in summary}
    peers = [name for name, program in programs.items() if program.state in row.states and name in summary]
    found = {"row": row.label}
    if TESSERA not in ours or not peers:
        return found
    def speed(kind, peer):
        return summary[peer]["median_ms"] / summary[ours[kind]]["median_ms"]
    best = min(peers, key=lambda name: summary[name]["median_ms"])
    found |= {"tessera": ours[TESSERA], "best_peer": best, "speed_to_best": speed(TESSERA, best)}
    if TESSERA_EP in ours:
        found["ep_speed_to_best"] = speed(TESSERA_EP, best)
    if resharding := [name for name in peers if programs[name].kind == ON]:
        peer = min(resharding, key=lambda name: summary[name]["median_ms"])
        found |= {"resharding_peer": peer, "speed_to_resharding": speed(TESSERA, peer),
                  "memory_to_resharding": summary[ours[TESSERA]]["peak_memory_bytes"] / summary[peer]["peak_memory_bytes"]}
    return found


def row_lines(row, programs, summary):
    """Returns the lines of a row: the bytes that each side stores, and the ratios."""
    found = row_results(row, programs, summary)
    lines = [f"{row.label}:"]
    if "best_peer" not in found:
        return lines + ["  no ratio, because Tessera or every peer failed"]
    lines += [f"  {name} stores {stored_text(summary[name].get('stored_bytes', {}))}" for name in (found["tessera"], found["best_peer"])]
    ep = TESSERA_EP + MOMENTS[row.moments]
    for name, key in ((found["tessera"], "speed_to_best"), (ep, "ep_speed_to_best")):
        if key in found:
            lines.append(f"  {name} against the fastest peer ({found['best_peer']}): {found[key]:.3f} x")
    if "resharding_peer" in found:
        lines.append(f"  {found['tessera']} against {found['resharding_peer']}: {found['speed_to_resharding']:.3f} x, with "
                     f"{found['memory_to_resharding']:.3f} of its memory")
    return lines
