"""What two equal runs may differ in. Every other key is compared, also where one side alone has it.

A key is `file.key`: `metrics` for a line of metrics.jsonl, `summary` for summary.json, `plan` for what `tessera plan` prints.
"""

# Key: why it is no part of the comparison.
IGNORED = {
    "metrics.tokens_per_second": "a rate, from measured times",
    "metrics.step_ms": "a measured time",
    "metrics.exposed_comm_ms": "a measured time",
    "summary.tokens_per_second": "a rate, from measured times",
    "summary.wire_format": "programs from before the number formats do not say it",
    "summary.gathered_bytes": "the same, by format; every line of metrics has its step's",
    "summary.checkpoint": "a path in the folder of the run, which each side has of its own",
}

# What follows from the arenas that `--gather-budget auto` and `--reduce-budget auto` choose by measured times.
CHOSEN_BY_TIMES = (
    "metrics.gathered_bytes",
    "summary.gather_arena_bytes",
    "summary.gather_peak_bytes",
    "summary.reduce_arena_bytes",
    "summary.reduce_peak_bytes",
    "summary.exchange_scratch_bytes",
)
