"""Prints every GPU test as a job for jobs.py: unit tests by layer, and each test of the scripts in tests/gpu and tests/e2e.

    python3 tools/run/gpu_tests.py | python3 tools/run/jobs.py --gpus 2 --seconds 540 -

Build the preset cuda first. --only of jobs.py selects tests, as in --only 'flags\\.|unit\\.ops'.
"""
import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = ("base", "quant", "ops", "comm_nccl", "shard", "runtime", "nn", "models", "train")
# By script: the number of GPUs that its tests need, and how the names of its tests begin.
SCRIPTS = {
    "gpu/test_gpus.py": (2, "test_"), "gpu/test_gpu_rows.py": (2, "test_"), "gpu/test_gpu_flags.py": (1, "test_"),
    "gpu/test_gpu_experts.py": (1, "test_"), "gpu/test_gpu_nodes.py": (1, "test_"), "gpu/test_gpu_generate.py": (1, "test_"),
    "gpu/test_gpu_monitor.py": (1, "test_"), "gpu/test_gpu_pauses.py": (1, "test_"), "gpu/test_gpu_ports.py": (1, "test_"),
    "gpu/test_gpu_sanitizer.py": (1, "test_"),
    "e2e/test_signals.py": (1, "GpuRanks.test_"), "e2e/test_lost_ranks.py": (1, "LostRanks.test_ranks_on_gpus"),
    "e2e/test_not_finite.py": (1, "NotFinite.test_every_step_is_skipped_on_gpus")}
# A test takes up to three times as long on a slow host, and beside tests on other GPUs of the host.
LIMIT_S = 300
# Limits of tests that take longer than 100 s on a fast host.
LIMITS_S = {
    "unit.ops": 580, "unit.nn": 580, "unit.train": 580, "gpus.a_step_allocates_no_memory_and_does_not_synchronize": 500,
    "rows.meshes_of_four_gpus": 500, "signals.ranks_that_share_a_gpu_stop_after_the_same_step": 500, "flags.activations_sent_as_fp8_codes": 500,
    "flags.products_over_tp": 400, "flags.decoded_products_over_tp": 400, "flags.products_in_chunks": 400, "flags.products_in_formats_and_chunks": 400, "flags.many_pieces": 400,
    "flags.nvfp4_recipe": 400,
    "flags.unused_places": 400, "sanitizer.tokens_split_over_tp_stay_within_bounds": 400, "sanitizer.kernels_stay_within_bounds": 580,
    "sanitizer.kernels_have_no_races": 580}
# Tests that need another number of GPUs than the other tests of their script.
GPUS = {"gpus.four_gpus_give_the_bits_of_one_gpu": 4, "rows.meshes_of_four_gpus": 4, "rows.one_gpu": 1,
        "rows.one_gpu_repeats_suppressed_steps": 1, "rows.one_gpu_with_formats": 1}


def tests_of(script):
    """Returns the tests of a script, as Class.test."""
    classes = [node for node in ast.parse((ROOT / "tests" / script).read_text()).body if isinstance(node, ast.ClassDef)]
    return [f"{group.name}.{node.name}" for group in classes for node in group.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def jobs():
    """Yields the line of each job. CTest runs the unit tests."""
    for layer in UNITS:
        yield line(f"unit.{layer}", 1, f"ctest --test-dir build/cuda --output-on-failure -R '^{layer}$'")
    for script, (gpus, begin) in SCRIPTS.items():
        prefix = pathlib.Path(script).stem.removeprefix("test_").removeprefix("gpu_")
        for test in tests_of(script):
            if begin in test:
                yield line(f"{prefix}.{test.split('.test_')[1]}", gpus, f"python3 tests/{script} {test}")


def line(name, gpus, command):
    scratch = f"TEST_TMP=$PWD/build/cuda/scripts/{name} TESSERA=$PWD/build/cuda/apps/tessera"
    return f"{name} {LIMITS_S.get(name, LIMIT_S)} {GPUS.get(name, gpus)} {scratch} {command}"


if __name__ == "__main__":
    print("\n".join(jobs()))
