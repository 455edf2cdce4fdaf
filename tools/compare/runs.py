"""The table of runs, with a name and flags for each. `inputs.py` creates the models and texts of the table."""
from dataclasses import dataclass

from ignored import CHOSEN_BY_TIMES


@dataclass(frozen=True)
class Run:
    """One training run, or one plan if `task` is plan. The flags replace the same flags of COMMON."""
    name: str
    flags: str = ""
    model: str = "odd"
    task: str = "train"
    resumes: str | None = None  # flags of an earlier run; this run resumes from its last checkpoint
    varying: tuple = ()         # keys that depend on measured times, in addition to those of ignored.py


@dataclass(frozen=True)
class Timing:
    """One measurement of step times: flags of `tessera bench step`."""
    name: str
    flags: str


# Budgets are numbers, not auto, because auto depends on measured times. Sequence parallelism is given, because its default
# differs between versions of the program. 12 sequences are divisible by 1, 2, 3, 4 and 6.
COMMON = ("--micro-batch 1 --global-batch 12 --seq-len 32 --steps 4 --seed 7 --lr 1e-2 --min-lr 1e-3 "
          "--gather-budget 1GB --reduce-budget 1GB --sequence-parallel off")
COMMON_CUDA = COMMON + " --backend nccl --dtype bf16 --deterministic on"
COMMON_OF_PLANS = "--micro-batch 1 --global-batch 12 --seq-len 32 --sequence-parallel off"

MIN = "--gather-budget min --reduce-budget min"
AUTO = "--gather-budget auto --reduce-budget auto"
POISON = "--debug-poison on --debug-delays 3"
NODES = "--reduce-order hierarchical --ranks-per-node"
SP = "--sequence-parallel on"

TYPES = [
    Run("one-fp32"),
    Run("one-bf16", "--dtype bf16"),
    Run("one-fp64", "--dtype fp64"),
    Run("groups-bf16", "--dtype bf16", model="groups"),
    Run("wire-bf16-of-fp32", "--gtp 3 --grad-wire bf16"),
    Run("wire-fp32-of-bf16", "--gtp 2 --dtype bf16 --grad-wire fp32"),
    Run("wire-bf16-dp", "--gtp 2 --dp 2 --grad-wire bf16"),
]
MESHES = [
    Run("tp2", "--tp 2"),
    Run("tp2-bf16", "--tp 2 --dtype bf16"),
    Run("tp4-groups", "--tp 4", model="groups"),
    Run("gtp2", "--gtp 2"),
    Run("gtp3-bf16", "--gtp 3 --dtype bf16"),
    Run("gtp4-fp64", "--gtp 4 --dtype fp64"),
    Run("dp2", "--dp 2"),
    Run("dp3-bf16", "--dp 3 --dtype bf16"),
    Run("tp2-gtp2", "--tp 2 --gtp 2"),
    Run("tp2-gtp3-fp64", "--tp 2 --gtp 3 --dtype fp64"),
    Run("tp2-dp2", "--tp 2 --dp 2"),
    Run("gtp2-dp3-bf16", "--gtp 2 --dp 3 --dtype bf16"),
    Run("tp2-gtp2-dp2", "--tp 2 --gtp 2 --dp 2 --global-batch 8"),
    Run("tp3-gtp2-groups", "--tp 3 --gtp 2", model="groups"),
]
SUMS = [
    Run("zero-off-dp2", "--dp 2 --zero off"),
    Run("zero-off-gtp2-dp2", "--gtp 2 --dp 2 --zero off"),
    Run("zero-on-tp2-dp2-bf16", "--tp 2 --dp 2 --zero on --dtype bf16"),
    Run("nodes-gtp4", f"--gtp 4 {NODES} 2"),
    Run("nodes-uneven-gtp3", f"--gtp 3 {NODES} 2"),
    Run("nodes-tp2-gtp4", f"--tp 2 --gtp 4 {NODES} 4"),
    Run("nodes-gtp2-dp2-bf16", f"--gtp 2 --dp 2 {NODES} 2 --dtype bf16"),
]
TABLES = [
    Run("rows-gtp2", "--gtp 2 --embedding rows"),
    Run("rows-gtp3-bf16", "--gtp 3 --embedding rows --dtype bf16"),
    Run("rows-tp2-gtp2", "--tp 2 --gtp 2 --embedding rows"),
    Run("rows-gtp2-dp2", f"--gtp 2 --dp 2 --embedding rows {MIN}"),
    Run("table-gtp3", "--gtp 3 --embedding gather"),
    Run("table-tp2-gtp2-bf16", "--tp 2 --gtp 2 --embedding gather --dtype bf16"),
    Run("tied-one", model="tied"),
    Run("tied-tp2", "--tp 2", model="tied"),
    Run("tied-gtp3-bf16", "--gtp 3 --dtype bf16", model="tied"),
    Run("tied-tp2-gtp2-dp2", "--tp 2 --gtp 2 --dp 2 --global-batch 8", model="tied"),
]
BUDGETS = [
    Run("budget-min", f"--gtp 2 {MIN}"),
    Run("budget-min-tp2-gtp3", f"--tp 2 --gtp 3 {MIN}"),
    Run("budget-between", "--gtp 3 --gather-budget 600KB --reduce-budget 600KB"),
    Run("budget-auto", f"--gtp 2 {AUTO}", varying=CHOSEN_BY_TIMES),
    Run("coalesce-nothing", "--gtp 3 --coalesce 1"),
    Run("coalesce-little", f"--tp 2 --gtp 2 --coalesce 100KB {MIN}"),
]
ACTIVATIONS = [
    Run("recompute-selective", "--gtp 2 --recompute selective"),
    Run("recompute-full", "--gtp 2 --recompute full"),
    Run("recompute-full-sp", f"--tp 2 --gtp 2 --recompute full {SP}"),
    Run("recompute-auto", "--gtp 2 --recompute auto --activation-budget 350KB"),
    Run("sp-tp2", f"--tp 2 {SP}"),
    Run("sp-tp3-bf16", f"--tp 3 {SP} --dtype bf16"),
    Run("sp-tp2-gtp2-dp2", f"--tp 2 --gtp 2 --dp 2 --global-batch 8 {SP}"),
    Run("sp-uneven-tokens", f"--tp 3 --seq-len 31 {SP}"),
    Run("micro-batch-3", "--micro-batch 3 --gtp 2"),
    Run("micro-batch-2-rows", "--micro-batch 2 --gtp 3 --embedding rows"),
    Run("micro-batches-12", "--seq-len 17"),
    Run("documents", "--mask-documents on --seq-len 96"),
    Run("documents-tp2-gtp2-sp", f"--tp 2 --gtp 2 --mask-documents on --seq-len 96 {SP} --dtype bf16"),
]
STEPS = [
    Run("evaluations", "--gtp 2 --eval-every 2 --save-every 2"),
    Run("evaluations-tp2-dp2", f"--tp 2 --dp 2 --eval-every 1 {MIN}"),
    Run("rates", "--gtp 2 --steps 6 --lr-schedule constant --warmup-steps 3 --clip 0 --weight-decay 0.3"),
    Run("poison", f"--gtp 2 {MIN} {POISON}"),
    Run("poison-rows", f"--gtp 3 --embedding rows {POISON}"),
    Run("poison-tp2-gtp2-sp", f"--tp 2 --gtp 2 {SP} --recompute full {POISON}"),
    Run("poison-documents-dp2", f"--gtp 2 --dp 2 --mask-documents on {MIN} {POISON}"),
]
RESUMED = [
    Run("resume-same", "--gtp 2 --steps 6", resumes="--gtp 2 --steps 3 --schedule-steps 6"),
    Run("resume-tp2-as-gtp3", "--gtp 3 --steps 6", resumes="--tp 2 --gtp 2 --steps 3 --schedule-steps 6"),
    Run("resume-gtp3-as-tp2-dp2", "--tp 2 --dp 2 --steps 6", resumes="--gtp 3 --dtype bf16 --steps 3 --schedule-steps 6"),
    Run("resume-zero-off", "--gtp 2 --dp 2 --zero off --steps 6", resumes="--dp 3 --steps 3 --schedule-steps 6"),
    Run("resume-tied", "--gtp 2 --steps 6", model="tied", resumes="--tp 2 --dtype fp64 --steps 3 --schedule-steps 6"),
]
PROCESSES = [
    Run("mpi-gtp2", "--backend mpi --gtp 2"),
    Run("mpi-tp2-bf16", "--backend mpi --tp 2 --dtype bf16"),
    Run("mpi-dp2", "--backend mpi --dp 2"),
    Run("mpi-rows-gtp3", f"--backend mpi --gtp 3 --embedding rows {MIN}"),
    Run("mpi-nodes-tp2-gtp2", f"--backend mpi --tp 2 --gtp 2 {NODES} 4"),
]
PLANS = [
    Run("plan-gtp4", "--gtp 4", task="plan"),
    Run("plan-min-tp2-gtp3-dp2", f"--tp 2 --gtp 3 --dp 2 {SP} --recompute full {MIN}", task="plan"),
    Run("plan-rows-nodes", f"--gtp 4 --embedding rows {NODES} 2 --gather-budget 600KB", task="plan"),
    Run("plan-tied-evaluate", "--gtp 3 --evaluate", model="tied", task="plan"),
    Run("plan-70b", "--tp 8 --gtp 16 --dp 8 --global-batch 128 --seq-len 8192 --dtype bf16 --recompute selective "
        f"{SP} --machine h200", model="llama3-70b", task="plan"),
]
RUNS = [*TYPES, *MESHES, *SUMS, *TABLES, *BUDGETS, *ACTIVATIONS, *STEPS, *RESUMED, *PROCESSES, *PLANS]

# One GPU.
CUDA_RUNS = [
    Run("cuda-bf16", "--steps 6"),
    Run("cuda-fp32", "--dtype fp32"),
    Run("cuda-groups", model="groups"),
    Run("cuda-tied", model="tied"),
    Run("cuda-long", "--seq-len 512 --micro-batch 2"),
    Run("cuda-documents", "--mask-documents on --seq-len 96"),
    Run("cuda-wire-fp32", "--grad-wire fp32"),
    Run("cuda-selective", "--recompute selective"),
    Run("cuda-full", "--recompute full"),
    Run("cuda-evaluations", "--steps 8 --eval-every 3 --save-every 4"),
    Run("cuda-poison", f"{MIN} {POISON}"),
    Run("cuda-graph", "--steps 8 --cuda-graph on"),
    Run("cuda-graph-evaluations", "--steps 10 --eval-every 4 --cuda-graph on"),
    Run("cuda-graph-poison", f"--steps 8 --cuda-graph on --debug-poison on {MIN}"),
    Run("cuda-graph-tied-full", "--steps 8 --cuda-graph on --recompute full", model="tied"),
    Run("cuda-resume", "--steps 6", resumes="--steps 3 --schedule-steps 6"),
]

TIMINGS = [
    Timing("step-one", "--model llama-demo --seq-len 128 --global-batch 2 --steps 12"),
    Timing("step-gtp2", "--model llama-demo --gtp 2 --seq-len 128 --global-batch 4 --steps 12"),
    Timing("step-small", "--model llama-tiny --gtp 2 --seq-len 32 --global-batch 16 --steps 60"),
]
LLAMA = "--backend nccl --model llama3-8b --layers 8 --dtype bf16 --gtp 1 --warmup 5 --steps 20"
CUDA_TIMINGS = [
    Timing("step-8192", f"{LLAMA} --seq-len 8192"),
    Timing("step-8192-graph", f"{LLAMA} --seq-len 8192 --cuda-graph"),
    Timing("step-1024", f"{LLAMA} --seq-len 1024"),
    Timing("step-1024-graph", f"{LLAMA} --seq-len 1024 --cuda-graph"),
]
