"""Keys that may differ between two equal runs. Every other key is compared, even if only one side has it.

A key is `file.key`: `metrics` for a line of metrics.jsonl, `summary` for summary.json, `settings` for the settings in config.json,
`run` for the other keys of config.json, `plan`, `inspect`, `evaluate` and `generate` for the output of these subcommands.
"""

# Key: the reason why it is not compared.
IGNORED = {
    "metrics.tokens_per_second": "a rate, from measured times",
    "metrics.step_ms": "a measured time",
    "metrics.exposed_comm_ms": "a measured time",
    "metrics.exposed_tp_ms": "a measured time",
    "metrics.slowest_rank": "follows from measured times",
    "metrics.slowest_rank_wait_ms": "a measured time",
    "metrics.gpu_clock_mhz": "the state of the GPUs",
    "metrics.gpu_power_w": "the state of the GPUs",
    "metrics.gpu_errors": "the state of the GPUs",
    "metrics.mfu": "follows from a measured time",
    "summary.mfu": "follows from a measured time",
    "summary.exposed_ms": "measured times",
    "summary.tokens_per_second": "a rate, from measured times",
    "summary.train_arenas": "older programs do not report it",
    "summary.weights_by_format": "older programs do not report it",
    "summary.experts_format": "only older programs report it",
    "summary.products_by_kernel": "older programs do not report it",
    "summary.weights_quantized_at_use": "older programs do not report it",
    "settings.gemm_kernels": "older programs do not store it",
    "plan.global_batch": "older programs do not report it",
    "plan.usable_bytes": "older programs do not report it",
    "plan.missing_bytes": "older programs do not report it",
    "plan.unmeasured": "older programs do not report it",
    "summary.checkpoint": "a path in the folder of the run, and each side has its own folder",
    "settings.out": "each side has its own folder",
    "settings.resume": "a path in the folder of the side",
    "run.version": "the release of the program",
}

# Keys that depend on the arenas. `--gather-budget auto` and `--reduce-budget auto` choose the arenas by measured times.
CHOSEN_BY_TIMES = (
    "metrics.gathered_bytes",
    "summary.gathered_bytes",
    "summary.gather_arena_bytes",
    "summary.gather_peak_bytes",
    "summary.reduce_arena_bytes",
    "summary.reduce_peak_bytes",
    "summary.exchange_scratch_bytes",
)
