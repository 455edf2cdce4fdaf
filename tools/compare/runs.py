"""The table of runs on CPUs, with a name and flags for each. `inputs.py` creates the models and texts of the table."""
from ignored import CHOSEN_BY_TIMES
from table import AUTO, BIASES, CAPACITY, DROPOUT, FP8, HALF, MESH, MIN, NODES, PIECES, POISON, ROUTERS, SP, WHOLE, Run, Timing

# Budgets are numbers, not auto, because auto depends on measured times. Sequence parallelism is given, because its default
# differs between versions of the program. 12 sequences are divisible by 1, 2, 3, 4 and 6.
COMMON = ("--micro-batch 1 --global-batch 12 --seq-len 32 --steps 4 --seed 7 --lr 1e-2 --min-lr 1e-3 "
          "--gather-budget 1GB --reduce-budget 1GB --sequence-parallel off")
COMMON_OF_PLANS = "--micro-batch 1 --global-batch 12 --seq-len 32 --sequence-parallel off"

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
ARCHITECTURES = [
    Run("qwen2-tp3-gtp2", "--tp 3 --gtp 2 --dtype bf16", model="qwen2"),
    Run("qwen3-tp2-gtp2", f"--tp 2 --gtp 2 {SP}", model="qwen3"),
]
EXPERTS = [
    Run("experts-one", ROUTERS, model="mixtral"),
    Run("experts-fp64-pooled", f"--gtp 2 --dtype fp64 --moe-aux pooled {ROUTERS}", model="mixtral"),
    Run("experts-gtp4", f"--gtp 4 {ROUTERS} --recompute selective", model="qwen3_moe"),
    Run("experts-egtp3-bf16", f"--gtp 3 --egtp 3 --dtype bf16 {ROUTERS}", model="mixtral"),
    Run("experts-ep2-egtp2", f"--gtp 4 --ep 2 --egtp 2 {ROUTERS}", model="mixtral"),
    Run("experts-ep4-bf16", f"--gtp 4 --ep 4 --dtype bf16 {ROUTERS} --coalesce 1", model="qwen3_moe"),
    Run("experts-ep2-copies-full", f"--gtp 4 --ep 2 {ROUTERS} --recompute full", model="mixtral"),
    Run("experts-etp2-egtp2", f"--tp 2 --gtp 2 --etp 2 --egtp 2 {SP} {ROUTERS}", model="mixtral"),
    Run("experts-etp2-ep2", f"--tp 2 --gtp 2 --etp 2 --ep 2 {SP} {ROUTERS}", model="qwen3_moe"),
    Run("experts-tp2-ep2", f"--tp 2 --ep 2 {SP} --dtype bf16 --recompute selective {ROUTERS}", model="mixtral"),
    Run("experts-tp2-ep2-pieces", f"--tp 2 --gtp 2 --ep 2 --egtp 2 {PIECES} --tp-chunks 2 {ROUTERS}", model="mixtral"),
    Run("experts-dp2", f"--gtp 2 --dp 2 --egtp 2 {ROUTERS}", model="mixtral"),
    Run("experts-dp2-zero-off", f"--gtp 2 --dp 2 --ep 2 --zero off {ROUTERS}", model="qwen3_moe"),
    Run("experts-nodes", f"--gtp 4 --ep 2 --egtp 2 {NODES} 2 {ROUTERS}", model="mixtral"),
    Run("experts-poison", f"--gtp 4 --ep 2 --egtp 2 {MIN} {POISON} {ROUTERS}", model="mixtral"),
    Run("experts-documents", f"--gtp 2 --ep 2 --mask-documents on --seq-len 96 {ROUTERS}", model="mixtral"),
    Run("experts-evaluations", f"--gtp 2 --ep 2 --eval-every 2 {ROUTERS}", model="qwen3_moe"),
    Run("experts-capacity", f"--gtp 2 --ep 2 {CAPACITY} {ROUTERS}", model="mixtral"),
    Run("experts-capacity-etp2", f"--tp 2 --etp 2 {SP} --micro-batch 2 --expert-capacity 0.8 {ROUTERS}", model="qwen3_moe"),
    Run("experts-dropout", f"--gtp 2 --ep 2 {DROPOUT} {ROUTERS}", model="mixtral"),
    Run("experts-fp8", f"--gtp 2 --egtp 2 {FP8} {ROUTERS}", model="mixtral"),
    Run("experts-fp8-etp2", f"--tp 2 --etp 2 {SP} {FP8} --fp8-scaling current {ROUTERS}", model="qwen3_moe"),
    Run("experts-nvfp4-ep2", f"--gtp 4 --ep 2 --egtp 2 --dtype bf16 --wire-format mxfp8 --gemm-format nvfp4 {ROUTERS}", model="mixtral"),
    Run("experts-init", f"--gtp 2 --ep 2 {ROUTERS}", model="mixtral-weights"),
    Run("experts-resume", "--gtp 4 --ep 4", model="mixtral", resumes=f"--gtp 2 --egtp 2 --dtype bf16 {ROUTERS} {HALF}"),
    Run("experts-mpi", f"--backend mpi --gtp 2 --ep 2 {ROUTERS}", model="mixtral"),
    Run("dots1-one", BIASES, model="dots1"),
    Run("dots1-default-rate", "--gtp 2 --egtp 2", model="dots1"),
    Run("dots1-no-rate", "--gtp 2 --ep 2 --expert-bias-rate 0", model="dots1"),
    Run("dots1-ep2-egtp2", f"--gtp 4 --ep 2 --egtp 2 {BIASES} {CAPACITY}", model="dots1"),
    Run("dots1-etp2-bf16", f"--tp 2 --gtp 2 --etp 2 --egtp 2 {SP} --dtype bf16 {BIASES}", model="dots1"),
    Run("dots1-dp2-min", f"--gtp 2 --dp 2 {MIN} {BIASES} {CAPACITY}", model="dots1"),
    Run("dots1-resume", "--gtp 3 --ep 3", model="dots1", resumes=f"--gtp 2 --ep 2 {BIASES} {CAPACITY} {HALF}"),
]
WIRES = [
    Run("wire-fp8-gtp3", "--gtp 3 --dtype bf16 --wire-format fp8"),
    Run("wire-fp8-block-tp2-gtp2", "--tp 2 --gtp 2 --dtype bf16 --wire-format fp8_block", model="even"),
    Run("wire-mxfp8-one", "--dtype bf16 --wire-format mxfp8"),
    Run("wire-mxfp8-gtp2-min", f"--gtp 2 --dtype bf16 --wire-format mxfp8 {MIN} {POISON}", model="even"),
    Run("wire-nvfp4-tp2-gtp2", f"--tp 2 --gtp 2 {SP} --dtype bf16 --wire-format nvfp4", model="even"),
    Run("wire-nvfp4-dp2", "--gtp 2 --dp 2 --dtype bf16 --wire-format nvfp4", model="even"),
    Run("wire-nvfp4-zero-off", "--gtp 2 --dp 2 --dtype bf16 --wire-format nvfp4 --zero off", model="even"),
    Run("wire-rules", "--gtp 3 --dtype bf16 --wire-format nvfp4 --wire-rules layers.0.*=mxfp8,layers.1.mlp.*=bf16", model="even"),
    Run("wire-rules-output", "--gtp 2 --dtype bf16 --wire-rules output.*=fp8_block,layers.1.attention.*=fp8", model="even"),
    Run("wire-fp8-tied", "--gtp 2 --dtype bf16 --wire-format fp8 --wire-rules embedding.*=mxfp8", model="tied"),
    Run("wire-fp8-evaluations", "--gtp 2 --dtype bf16 --wire-format fp8 --eval-every 2 --recompute full"),
    Run("wire-nvfp4-nodes", f"--gtp 4 --dtype bf16 --wire-format nvfp4 {NODES} 2", model="even"),
    Run("wire-mxfp8-mpi", "--backend mpi --gtp 2 --dtype bf16 --wire-format mxfp8", model="even"),
    Run("wire-nvfp4-resume", "--gtp 3", model="even", resumes=f"--gtp 2 --dtype bf16 --wire-format nvfp4 {HALF}"),
]
BACKWARD = [
    Run("backward-mxfp8", "--gtp 2 --dtype bf16 --wire-format nvfp4 --wire-format-backward mxfp8", model="even"),
    Run("backward-bf16-dp2", f"--gtp 2 --dp 2 --dtype bf16 --wire-format fp8 --wire-format-backward bf16 {MIN}", model="even"),
    Run("backward-rules", "--gtp 3 --dtype bf16 --wire-format nvfp4 --wire-rules-backward layers.0.*=mxfp8 --recompute full",
        model="even"),
    Run("backward-products", f"--tp 2 --gtp 2 {SP} --dtype bf16 --wire-format mxfp8 --gemm-format mxfp8", model="even"),
    Run("backward-resume", "--gtp 3", model="even",
        resumes=f"--gtp 2 --dtype bf16 --wire-format nvfp4 --wire-format-backward mxfp8 {HALF}"),
]
PRODUCTS = [
    Run("products-fp8-one", FP8),
    Run("products-fp8-gtp3", f"--gtp 3 {FP8} {MIN} {POISON}"),
    Run("products-fp8-dp2", f"--gtp 2 --dp 2 {FP8}"),
    Run("products-fp8-current", f"--tp 2 --gtp 2 {SP} {FP8} --fp8-scaling current", model="even"),
    Run("products-fp8-settings", f"--gtp 2 {FP8} --fp8-recipe e4m3 --fp8-amax newest --fp8-history 2 --fp8-margin 1"),
    Run("products-fp8-of-nvfp4", f"--gtp 2 --dtype bf16 --wire-format nvfp4 --gemm-format fp8 --recompute selective", model="even"),
    Run("products-fp8-block", "--gtp 2 --dtype bf16 --wire-format fp8_block --gemm-format fp8_block", model="even"),
    Run("products-nvfp4", f"--gtp 2 --dtype bf16 --wire-format nvfp4 --gemm-format nvfp4 --recompute full", model="even"),
    Run("products-mxfp8", "--dtype bf16 --wire-format mxfp8 --gemm-format mxfp8", model="even"),
    Run("products-mxfp8-of-bf16", f"--tp 2 {SP} --dtype bf16 --gemm-format mxfp8 --recompute selective"),
    Run("products-rules", f"--gtp 2 {FP8} --gemm-rules layers.0.*=fp8_block,output.weight=fp8,layers.1.mlp.down.weight=bf16"),
    Run("products-evaluations", f"--gtp 2 {FP8} --eval-every 1"),
    Run("products-suppressed", f"--gtp 2 {FP8} --debug-suppress 2,4:2"),
    Run("products-grad-wire-fp32", f"--gtp 2 {FP8} --grad-wire fp32"),
    Run("products-tied-tp2", f"--tp 2 --gtp 2 {SP} {FP8} --gemm-rules embedding.weight=fp8", model="tied"),
    Run("products-resume", "--gtp 3", resumes=f"--gtp 2 {FP8} --fp8-history 3 {HALF}"),
    Run("products-resume-margin", "--gtp 2 --fp8-margin 1", resumes=f"--gtp 2 {FP8} {HALF}"),
]
PIECES_OF_TOKENS = [
    Run("pieces-tp2-bf16", f"--tp 2 {PIECES} --dtype bf16"),
    Run("pieces-tp3-chunks", f"--tp 3 --gtp 2 {PIECES} --tp-chunks 2"),
    Run("pieces-chunks-poison", f"--tp 2 --gtp 2 {PIECES} --tp-chunks 4 --seq-len 31 {MIN} {POISON}"),
    Run("pieces-full-dp2", f"--tp 2 --dp 2 {PIECES} --recompute full --micro-batch 2"),
    Run("whole-chunks", f"--tp 2 --gtp 2 {WHOLE} --tp-chunks 2 --dtype bf16"),
    Run("pieces-codes", f"--tp 2 --gtp 2 {PIECES} {FP8} --tp-wire-format fp8 --tp-chunks 2", model="even"),
    Run("whole-codes-current", f"--tp 2 {WHOLE} {FP8} --fp8-scaling current --tp-wire-format fp8", model="even"),
    Run("pieces-evaluations", f"--tp 2 --gtp 2 {PIECES} --eval-every 2"),
    Run("pieces-mpi", f"--backend mpi --tp 2 {PIECES} --tp-chunks 2"),
    Run("pieces-resume", f"--tp 3 {PIECES}", resumes=f"--tp 2 --gtp 2 {PIECES} --tp-chunks 2 {HALF}"),
]
DROPPED = [
    Run("dropout-one", DROPOUT),
    Run("dropout-gtp2-full", f"--gtp 2 {DROPOUT} --recompute full --debug-suppress 2"),
    Run("dropout-tp2-pieces", f"--tp 2 --gtp 2 {PIECES} {DROPOUT} --dtype bf16 --recompute selective"),
    Run("dropout-dp2", f"--dp 2 --micro-batch 3 {DROPOUT}"),
    Run("dropout-products", f"--gtp 2 {FP8} {DROPOUT} --eval-every 2"),
    Run("dropout-unused", f"--tp 2 --dp 2 --dead dp1:0 --reduced-batch 5 {DROPOUT}"),
    Run("dropout-resume", "--gtp 2", resumes=f"--tp 2 {DROPOUT} {HALF}"),
]
UNUSED = [
    Run("dead-gtp", "--gtp 2 --dp 2 --dead dp0.gtp1:0"),
    Run("dead-gtp-zero-off-bf16", f"--gtp 3 --dp 2 --dead dp0.gtp0:0;dp0.gtp2:0 --zero off --dtype bf16 {MIN}"),
    Run("dead-tp", "--tp 2 --dp 2 --dead dp0:1"),
    Run("dead-tp-share-bf16", f"--tp 3 --gtp 2 --dp 2 --dead dp0.gtp1:1 --reduced-batch 5 {SP} --dtype bf16", model="groups"),
    Run("dead-tp-pieces", f"--tp 3 --dp 2 --dead dp1:2 --reduced-batch auto {PIECES}", model="groups"),
    Run("dead-spares", "--tp 4 --dp 3 --dead dp0:0,2;dp1:1 --tp-spares auto --reduced-batch auto", model="groups"),
    Run("dead-one-replica", f"--tp 2 --gtp 2 --dead dp0.gtp0:1 {MIN} {POISON}"),
    Run("dead-replica", "--gtp 2 --dp 3 --dead dp1.gtp0:0;dp1.gtp1:0"),
    Run("dead-uneven-batch", "--gtp 3 --dp 2 --dead dp0.gtp1:0 --global-batch 7 --micro-batch 2"),
    Run("idle-group", "--tp 2 --gtp 2 --dp 2 --idle dp1.gtp0:0,1 --recompute full"),
    Run("idle-slot", "--tp 2 --gtp 2 --idle dp0.gtp0:0 --eval-every 2"),
    Run("dead-formats", f"--gtp 2 --dp 2 --dead dp0.gtp1:0 {FP8}"),
    Run("dead-tied", "--tp 2 --dp 2 --dead dp0:0", model="tied"),
    Run("dead-mpi", "--backend mpi --tp 2 --gtp 2 --dead dp0.gtp0:1"),
    Run("resume-as-dead", "--dead dp0:1 --reduced-batch auto", kept=MESH, resumes=f"--tp 2 --dp 2 {HALF}"),
    Run("resume-dead", kept=MESH, resumes=f"--tp 3 --gtp 2 --dead dp0.gtp1:0 {HALF}"),
    Run("resume-dead-and-idle", "--idle dp1.gtp0:0", kept=MESH, resumes=f"--gtp 2 --dp 2 --dead dp0.gtp1:0 {HALF}"),
    Run("resume-dead-as-whole", "--tp 2 --gtp 2 --dp 1", resumes=f"--tp 2 --dp 2 --dead dp1:0 --idle dp0:1 --dtype bf16 {HALF}"),
]
INITIAL = [
    Run("init-one", "", model="odd-weights"),
    Run("init-tp2-gtp2-bf16", f"--tp 2 --gtp 2 {SP} --dtype bf16", model="odd-weights"),
    Run("init-gtp3-formats", f"--gtp 3 {FP8}", model="odd-weights"),
    Run("init-dead", "--tp 3 --gtp 2 --dead dp0.gtp0:2", model="odd-weights"),
    Run("init-resume", "--gtp 2", model="odd-weights", resumes=f"--tp 2 {HALF}"),
]
READ = "--data {valid} --seq-len 24"
PROMPT = "--prompt-ids 5,17,3,90 --tokens 12"
STORED = [
    Run("evaluate-one", READ, model="odd-weights", task="evaluate"),
    Run("evaluate-tp2-gtp2-bf16", f"{READ} --tp 2 --gtp 2 --dtype bf16 --micro-batch 3", model="odd-weights", task="evaluate"),
    Run("evaluate-experts", f"{READ} --tp 2 --gtp 2 --dp 2", model="mixtral-weights", task="evaluate"),
    Run("evaluate-run", f"{READ} --gtp 3 --dp 2 --mask-documents on", task="evaluate", resumes="--tp 2 --steps 2"),
    Run("evaluate-run-dots1", f"{READ} --tp 2", model="dots1", task="evaluate", resumes=f"--gtp 2 --ep 2 {BIASES} --steps 2"),
    Run("generate-greedy", f"{PROMPT} --tp 3", model="odd-weights", task="generate"),
    Run("generate-drawn", f"{PROMPT} --gtp 2 --temperature 0.9 --top-p 0.8 --seed 3", model="odd-weights", task="generate"),
    Run("generate-experts", f"{PROMPT} --gtp 2 --dtype bf16", model="mixtral-weights", task="generate"),
    Run("generate-run", f"{PROMPT} --tp 2 --gtp 2", task="generate", resumes=f"--gtp 2 {FP8} --steps 3"),
]
LAYOUTS = [
    Run("layout-experts", f"--tp 2 --gtp 2 --dp 2 --etp 2 --egtp 2 {SP} --dtype bf16 --wire-format mxfp8", model="mixtral",
        task="inspect layout"),
    Run("layout-unused", "--tp 3 --gtp 2 --dp 2 --dead dp0.gtp1:0,1;dp1.gtp0:2 --tp-spares auto", task="inspect layout"),
]
PLANS = [
    Run("plan-gtp4", "--gtp 4", task="plan"),
    Run("plan-min-tp2-gtp3-dp2", f"--tp 2 --gtp 3 --dp 2 {SP} --recompute full {MIN}", task="plan"),
    Run("plan-rows-nodes", f"--gtp 4 --embedding rows {NODES} 2 --gather-budget 600KB", task="plan"),
    Run("plan-tied-evaluate", "--gtp 3 --evaluate", model="tied", task="plan"),
    Run("plan-experts", f"--tp 2 --gtp 4 --etp 2 --ep 2 --egtp 2 {SP} {CAPACITY} --expert-load 2", model="mixtral", task="plan"),
    Run("plan-experts-gpu", "--gtp 4 --ep 4 --seq-len 4096 --dtype bf16 --machine h200", model="mixtral-8x7b", task="plan"),
    Run("plan-formats", f"--tp 2 --gtp 2 {PIECES} {FP8} --tp-wire-format fp8 --tp-chunks 2 --wire-format-backward mxfp8 "
        "--gemm-rules layers.0.*=fp8_block --machine h100", model="even", task="plan"),
    Run("plan-dropout-recompute", f"--tp 2 {SP} {DROPOUT} --recompute auto --activation-budget 350KB", task="plan"),
    Run("plan-search", "--search --ranks 8 --machine h100 --dtype bf16", model="groups", task="plan"),
    Run("plan-search-experts", "--search --ranks 4 --machine h100 --dtype bf16", model="mixtral", task="plan"),
    Run("plan-search-8b", "--search --ranks 8 --global-batch 32 --seq-len 8192 --dtype bf16 --machine h100", model="llama3-8b",
        task="plan"),
    Run("plan-proposed", "--ranks 4 --dtype bf16 --machine h100", task="plan"),
    Run("plan-dead", f"--tp 3 --gtp 2 --dp 2 --dead dp1.gtp1:0 {SP} --machine h100", task="plan"),
    Run("plan-dead-shares", "--tp 4 --gtp 2 --dp 4 --global-batch 96 --seq-len 4096 --dtype bf16 --dead dp3.gtp1:0 "
        f"--idle dp2.gtp0:3 --tp-spares auto --reduced-batch auto {SP} --machine h100", model="llama3-8b", task="plan"),
    Run("plan-dead-share", f"--tp 2 --gtp 2 --dp 4 --global-batch 16 --dead-share 0.1 --dead-seeds 2 {SP} --machine h100", task="plan"),
    Run("plan-70b", "--tp 8 --gtp 16 --dp 8 --global-batch 128 --seq-len 8192 --dtype bf16 --recompute selective "
        f"{SP} --machine h200", model="llama3-70b", task="plan"),
]
RUNS = [*TYPES, *MESHES, *SUMS, *TABLES, *BUDGETS, *ACTIVATIONS, *STEPS, *RESUMED, *PROCESSES, *ARCHITECTURES, *EXPERTS, *WIRES,
        *BACKWARD, *PRODUCTS, *PIECES_OF_TOKENS, *DROPPED, *UNUSED, *INITIAL, *STORED, *LAYOUTS, *PLANS]

TIMINGS = [
    Timing("step-one", "--model llama-demo --seq-len 128 --global-batch 2 --steps 12"),
    Timing("step-gtp2", "--model llama-demo --gtp 2 --seq-len 128 --global-batch 4 --steps 12"),
    Timing("step-small", "--model llama-tiny --gtp 2 --seq-len 32 --global-batch 16 --steps 60"),
]
