"""The table of runs on GPUs. Rows with several ranks are skipped if the machine has fewer GPUs."""
from table import BIASES, CAPACITY, DROPOUT, FP8, HALF, MIN, NODES, PIECES, POISON, ROUTERS, SP, WHOLE, Run, Timing

COMMON_CUDA = ("--micro-batch 1 --global-batch 12 --seq-len 32 --steps 4 --seed 7 --lr 1e-2 --min-lr 1e-3 "
               "--gather-budget 1GB --reduce-budget 1GB --sequence-parallel off --backend nccl --dtype bf16 --deterministic on")
FROZEN = "--backend nccl --dtype bf16"
ON = "--cuda-graph on"
GRAPH = f"--steps 8 {ON}"  # the first steps are recorded and enqueued

DENSE = [
    Run("cuda-bf16", "--steps 6"),
    Run("cuda-fp32", "--dtype fp32"),
    Run("cuda-groups", model="groups"),
    Run("cuda-qwen2", model="qwen2"),
    Run("cuda-qwen3", "--recompute selective", model="qwen3"),
    Run("cuda-tied", model="tied"),
    Run("cuda-long", "--seq-len 512 --micro-batch 2"),
    Run("cuda-documents", "--mask-documents on --seq-len 96"),
    Run("cuda-wire-fp32", "--grad-wire fp32"),
    Run("cuda-selective", "--recompute selective"),
    Run("cuda-full", "--recompute full"),
    Run("cuda-evaluations", "--steps 8 --eval-every 3 --save-every 4"),
    Run("cuda-poison", f"{MIN} {POISON}"),
    Run("cuda-dropout", DROPOUT),
    Run("cuda-init", model="odd-weights"),
    Run("cuda-resume", "--steps 6", resumes="--steps 3 --schedule-steps 6"),
    Run("cuda-evaluate", f"--data {{valid}} --seq-len 24 {FROZEN}", model="odd-weights", task="evaluate"),
    Run("cuda-generate", f"--prompt-ids 5,17,3,90 --tokens 12 {FROZEN}", model="odd-weights", task="generate"),
]
GRAPHS = [
    Run("cuda-graph", GRAPH),
    Run("cuda-graph-evaluations", f"{ON} --steps 10 --eval-every 4"),
    Run("cuda-graph-poison", f"{GRAPH} --debug-poison on {MIN}"),
    Run("cuda-graph-tied-full", f"{GRAPH} --recompute full", model="tied"),
    Run("cuda-graph-dropout-full", f"{GRAPH} {DROPOUT} --recompute full"),
    Run("cuda-graph-suppressed", f"{GRAPH} --debug-suppress 2,6:2"),
    Run("cuda-graph-resume", GRAPH, resumes=f"{ON} --steps 5 --schedule-steps 8"),
]
FORMATS = [
    Run("cuda-fp8", FP8, model="whole"),
    Run("cuda-fp8-odd", FP8),
    Run("cuda-fp8-current", f"{FP8} --fp8-scaling current", model="whole"),
    Run("cuda-fp8-settings", f"{FP8} --fp8-recipe e4m3 --fp8-amax newest --fp8-history 2 --fp8-margin 1", model="whole"),
    Run("cuda-fp8-block", "--wire-format fp8_block --gemm-format fp8_block", model="whole"),
    Run("cuda-fp8-of-nvfp4", "--wire-format nvfp4 --gemm-format fp8 --recompute full", model="even"),
    Run("cuda-fp8-rules", f"{FP8} --gemm-rules layers.0.*=fp8_block,output.weight=fp8,layers.1.mlp.down.weight=bf16", model="whole"),
    Run("cuda-fp8-dropout", f"{FP8} {DROPOUT} --eval-every 2", model="whole"),
    Run("cuda-fp8-graph", f"{FP8} {GRAPH}", model="whole"),
    Run("cuda-fp8-graph-evaluations", f"{FP8} {GRAPH} --eval-every 4 --recompute selective", model="whole"),
    Run("cuda-fp8-graph-suppressed", f"{FP8} {GRAPH} --debug-suppress 5 {MIN}", model="even"),
    Run("cuda-fp8-resume", GRAPH, model="whole", resumes=f"{FP8} {ON} --steps 5 --schedule-steps 8"),
    Run("cuda-nvfp4", "--wire-format nvfp4 --gemm-format nvfp4", model="whole"),
    Run("cuda-mxfp8-graph", f"--wire-format mxfp8 --gemm-format mxfp8 {GRAPH}"),
    Run("cuda-wire-mxfp8", "--wire-format mxfp8", model="whole"),
    Run("cuda-wire-nvfp4-rules", "--wire-format nvfp4 --wire-rules layers.0.*=mxfp8,layers.1.mlp.*=bf16", model="even"),
    Run("cuda-backward-mxfp8-graph", f"--wire-format nvfp4 --wire-format-backward mxfp8 {GRAPH}", model="even"),
]
EXPERTS = [
    Run("cuda-experts", ROUTERS, model="mixtral"),
    Run("cuda-experts-whole", f"{ROUTERS} --recompute selective", model="whole-experts"),
    Run("cuda-experts-fp32", f"--dtype fp32 {ROUTERS} --moe-aux pooled", model="qwen3_moe"),
    Run("cuda-experts-capacity", f"{CAPACITY} {ROUTERS}", model="qwen3_moe"),
    Run("cuda-experts-documents", f"--mask-documents on --seq-len 96 {ROUTERS}", model="mixtral"),
    Run("cuda-experts-fp8", f"{FP8} {ROUTERS}", model="whole-experts"),
    Run("cuda-experts-nvfp4", f"--wire-format nvfp4 --gemm-format nvfp4 {GRAPH} {ROUTERS}", model="whole-experts"),
    Run("cuda-experts-mxfp8", f"--wire-format mxfp8 --gemm-format mxfp8 {ROUTERS}", model="mixtral"),
    Run("cuda-experts-init", f"{ROUTERS} --eval-every 2", model="mixtral-weights"),
    Run("cuda-experts-graph", f"{GRAPH} {ROUTERS}", model="whole-experts"),
    Run("cuda-experts-graph-poison", f"{GRAPH} --debug-poison on {MIN} {ROUTERS} --recompute full", model="mixtral"),
    Run("cuda-dots1", f"{BIASES} {CAPACITY}", model="dots1"),
    Run("cuda-dots1-graph", f"{GRAPH} {BIASES} {CAPACITY} --debug-suppress 2,6", model="whole-dots1"),
    Run("cuda-dots1-resume", GRAPH, model="whole-dots1", resumes=f"{BIASES} {CAPACITY} {ON} --steps 5 --schedule-steps 8"),
]
TWO_GPUS = [
    Run("cuda2-gtp2", "--gtp 2"),
    Run("cuda2-gtp2-graph", f"--gtp 2 {GRAPH} --eval-every 4"),
    Run("cuda2-gtp2-nccl", f"--gtp 2 --pushes off {MIN} {POISON}"),
    Run("cuda2-rows", "--gtp 2 --embedding rows"),
    Run("cuda2-dp2-zero-off", "--dp 2 --zero off"),
    Run("cuda2-dp2-graph", f"--dp 2 {GRAPH}"),
    Run("cuda2-tp2", "--tp 2", model="whole"),
    Run("cuda2-tp2-pieces", f"--tp 2 {PIECES} --tp-chunks 2", model="whole"),
    Run("cuda2-tp2-pieces-graph", f"--tp 2 {PIECES} --tp-chunks 2 {GRAPH} --debug-poison on"),
    Run("cuda2-tp2-whole", f"--tp 2 {WHOLE} --tp-chunks 2 --pushes off", model="whole"),
    Run("cuda2-tp2-codes", f"--tp 2 {PIECES} {FP8} --tp-wire-format fp8", model="whole"),
    Run("cuda2-tp2-codes-graph", f"--tp 2 {PIECES} {FP8} --tp-wire-format fp8 --fp8-scaling current {GRAPH}", model="even"),
    Run("cuda2-fp8-gtp2-graph", f"--gtp 2 {FP8} {GRAPH} --debug-poison on {MIN}", model="whole"),
    Run("cuda2-nvfp4-dp2", "--dp 2 --wire-format nvfp4 --gemm-format fp8_block", model="even"),
    Run("cuda2-nodes", f"--gtp 2 {NODES} 2"),
    Run("cuda2-dead-gtp", "--gtp 2 --dp 2 --dead dp0.gtp0:0;dp1.gtp1:0"),
    Run("cuda2-dead-tp", f"--tp 2 --dp 2 --dead dp0:0;dp1:1 {SP}"),
    Run("cuda2-ep2", f"--gtp 2 --ep 2 {ROUTERS}", model="mixtral"),
    Run("cuda2-ep2-graph", f"--gtp 2 --ep 2 {GRAPH} {ROUTERS} --debug-poison on {MIN}", model="whole-experts"),
    Run("cuda2-ep2-room", f"--gtp 2 --ep 2 --expert-room 1 {ROUTERS}", model="qwen3_moe"),
    Run("cuda2-egtp2-graph", f"--gtp 2 --egtp 2 {GRAPH} {ROUTERS}", model="whole-experts"),
    Run("cuda2-etp2", f"--tp 2 --etp 2 {SP} {ROUTERS}", model="mixtral"),
    Run("cuda2-dots1-ep2", f"--gtp 2 --ep 2 {BIASES} {CAPACITY} --recompute selective", model="whole-dots1"),
    Run("cuda2-resume", "--tp 2", resumes=f"--gtp 2 {HALF}"),
]
CUDA_RUNS = [*DENSE, *GRAPHS, *FORMATS, *EXPERTS, *TWO_GPUS]

LLAMA = "--backend nccl --model llama3-8b --layers 8 --dtype bf16 --gtp 1 --warmup 5 --steps 20"
CUDA_TIMINGS = [
    Timing("step-8192", f"{LLAMA} --seq-len 8192"),
    Timing("step-8192-graph", f"{LLAMA} --seq-len 8192 --cuda-graph"),
    Timing("step-1024", f"{LLAMA} --seq-len 1024"),
    Timing("step-1024-graph", f"{LLAMA} --seq-len 1024 --cuda-graph"),
]
