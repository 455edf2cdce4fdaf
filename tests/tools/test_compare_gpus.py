#!/usr/bin/env python3
"""Tests bench/compare.sh with programs that only print: the programs it starts, its figures, and its reports of failures."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "peers"))

import compare_rows  # noqa: E402
from quantiles import quantile  # noqa: E402
from summary import run_cases  # noqa: E402

SEQ_LEN, MICRO_BATCH = 512, 3
# A program that logs its arguments and consumes its next answer: a result to print, or code to run instead.
PROGRAM = textwrap.dedent("""\
    #!{python}
    import json, pathlib, sys, time
    folder, name = pathlib.Path({folder!r}), {name!r}
    if name == "peer":
        flag = next((flag for flag in ("--async", "--reshard") if flag in sys.argv), None)
        name = sys.argv[sys.argv.index(flag) + 1] if flag else "on"
    with open(folder / "log", "a") as log:
        print(json.dumps([name] + sys.argv[1:]), file=log)
    answers = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(answers[1:]))
    if isinstance(answers[0], str):
        exec(answers[0])
    else:
        print("{{not json}} a word first")
        print(json.dumps(answers[0], indent=2 if name == "tessera" else None))
    """)


def result(ms, memory=10**9, **others):
    return {"median_ms": ms, "p10_ms": ms * 0.99, "p90_ms": ms * 1.01, "peak_memory_bytes": memory,
            "tokens_per_second_per_gpu": SEQ_LEN * MICRO_BATCH / ms * 1e3, "loss": 11.5, **others}


PEER_FP32, PEER_BF16, PEER_ALL_BF16 = ({"weight": weight, "master": 0, "moments": moments}
                                       for weight, moments in ((4.0, 8.0), (4.0, 4.0), (2.0, 4.0)))


def tessera_state(moments):
    """Returns the update rules in the JSON line of `bench step`, with the bytes of a parameter's moments."""
    return {"update_rules": [{"rule": "adamw", "parameters": 100, "state_bytes": 100 * moments},
                             {"rule": "adamw", "parameters": 50, "state_bytes": 50 * moments}]}


def only_row(summary, *keys):
    """Returns figures of the only row."""
    row, = summary["rows"]
    return tuple(row[key] for key in keys)


class Compare(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("tessera", "peer"):
            path = self.folder / f"{name}.py"
            path.write_text(PROGRAM.format(python=sys.executable, folder=str(self.folder), name=name))
            path.chmod(0o755)

    def compare(self, tessera, on, off, *options):
        """Runs one round for each answer of Tessera. Returns the exit code, lines of stdout, the JSON line and stderr."""
        for name, answers in (("tessera", tessera), ("on", on), ("off", off)):
            (self.folder / name).write_text(json.dumps(answers))
        command = [ROOT / "bench/compare.sh", "--gpus", 2, "--tessera", self.folder / "tessera.py",
                   "--python", self.folder / "peer.py", "--seq-len", SEQ_LEN, "--micro-batch", MICRO_BATCH,
                   "--rounds", len(tessera), *options]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd="/", check=False)
        lines = done.stdout.splitlines()
        self.assertTrue(lines, done.stderr)
        return done.returncode, lines, json.loads(lines[-1]), done.stderr

    def calls(self):
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def assert_said(self, lines, start, words):
        self.assertTrue(any(line.startswith(start) and words in line for line in lines), lines)

    def test_programs_alternate_and_get_the_same_task(self):
        self.compare([result(1)] * 2, [result(1)] * 2, [result(1)] * 2, "--layers", "7", "--", "--json-extra", "x")
        calls = self.calls()
        self.assertEqual([call[0] for call in calls], ["tessera", "on", "off", "off", "on", "tessera"])
        task = f"--model llama3-8b --seq-len {SEQ_LEN} --micro-batch {MICRO_BATCH} --steps 20 --warmup 5 --layers 7"
        for call in calls:
            self.assertIn(task, " ".join(call))
        self.assertTrue(" ".join(calls[0]).endswith("--tp 1 --gtp 2 --dtype bf16 --moments fp32 --json --json-extra x"), calls[0])
        self.assertEqual(calls[0][1:3], ["bench", "step"])
        self.assertIn("--nproc-per-node 2", " ".join(calls[1]))
        self.assertTrue(any(pathlib.Path(word) == ROOT / "bench/peers/fsdp2.py" for word in calls[1]))
        self.assertNotIn("--json-extra", calls[1])

    def test_tensor_parallelism_has_its_own_peer(self):
        ours, peer = (result(ms, tokens_per_second_per_gpu=SEQ_LEN * MICRO_BATCH / 2 / ms * 1e3) for ms in (10, 13))
        code, lines, summary, _ = self.compare([ours], [peer], [peer], "--tp", 2)
        self.assertEqual(0, code, lines)
        calls = self.calls()
        self.assertEqual(["tessera", "on", "off"], [call[0] for call in calls])
        self.assertTrue(" ".join(calls[0]).endswith("--tp 2 --gtp 1 --dtype bf16 --moments fp32 --json --sequence-parallel on"), calls[0])
        for call, value in zip(calls[1:], ("on", "off")):
            self.assertTrue(any(pathlib.Path(word) == ROOT / "bench/peers/tensor_parallel.py" for word in call))
            self.assertEqual(["--async", value], call[-2:])
        self.assertEqual((compare_rows.TP_ON, 1.3, 2), (*only_row(summary, "best_peer", "speed_to_best"), summary["tp"]))
        self.assertNotIn("speed_to_resharding", summary["rows"][0])

    def test_one_gpu_is_compared_with_plain_torch(self):
        for model, routing in (("mixtral-8x7b", ["--routing", "skewed"]), ("llama3-8b", [])):
            code, lines, summary, _ = self.compare([result(10, expert_load=1.5)], [result(12), result(11)], [], "--gpus", 1,
                                                   "--model", model, "--routing", "skewed")
            self.assertIn("tessera: expert_load 1.500", lines)
            self.assertEqual(code, 0)
            compiled = compare_rows.ONE_GPU + ", compiled fp32 update"
            self.assertEqual(list(summary["programs"]), ["tessera", compare_rows.ONE_GPU, compiled])
            self.assertEqual((compiled, 1.1), only_row(summary, "best_peer", "speed_to_best"))
            calls = self.calls()[-3:]
            for call, state in zip(calls[1:], ("fp32", "fp32-compiled")):
                self.assertEqual(str(ROOT / "bench/peers/one_gpu.py"), str(pathlib.Path(call[1])))
                self.assertEqual([*routing, "--state", state], call[-len(routing) - 2:])
            self.assertEqual(bool(routing), "--routing" in calls[0])

    def test_rows_of_both_types_of_moments_come_from_one_run(self):
        ours = [result(10, 8e9, **tessera_state(8)), result(8, 6e9, **tessera_state(4))]
        states = [result(ms, 12e9, stored_bytes=stored) for ms, stored in ((20, PEER_FP32), (18, PEER_BF16), (12, PEER_ALL_BF16))]
        code, lines, summary, _ = self.compare(ours, states, states, "--moments", "both", "--rounds", 1)
        self.assertEqual(0, code, lines)
        both_fp32, both_bf16, less_work = summary["rows"]
        on = compare_rows.ON  # of equally fast runs, the first
        self.assertEqual(("tessera", on, 2.0), tuple(both_fp32[key] for key in ("tessera", "best_peer", "speed_to_best")))
        self.assertEqual((f"{on}, compiled bf16 moments", 2.25, 0.5),
                         tuple(both_bf16[key] for key in ("best_peer", "speed_to_best", "memory_to_resharding")))
        self.assertEqual(("tessera, bf16 moments", f"{on}, all bf16", 1.5),
                         tuple(less_work[key] for key in ("tessera", "best_peer", "speed_to_best")))
        self.assertIn("less work for the peer", less_work["row"])
        for line in ("  tessera stores weight 2, master 2, moments 8 bytes a parameter",
                     "  tessera, bf16 moments stores weight 2, master 2, moments 4 bytes a parameter",
                     f"  {on} stores weight 4, master 0, moments 8 bytes a parameter",
                     f"  {on}, compiled bf16 moments stores weight 4, master 0, moments 4 bytes a parameter",
                     f"  tessera, bf16 moments against the fastest peer ({on}, all bf16): 1.500 x"):
            self.assertIn(line, lines)
        calls = self.calls()
        self.assertEqual(["fp32", "bf16"], [call[call.index("--moments") + 1] for call in calls[:2]])
        self.assertEqual([(state, reshard) for state in ("fp32", "bf16-moments", "bf16") for reshard in ("on", "off")],
                         [(call[call.index("--state") + 1], call[call.index("--reshard") + 1]) for call in calls[2:]])

    def test_a_faster_fp32_update_is_the_peer_of_bf16_moments(self):
        states = [result(18), result(12), result(30)]
        _, lines, summary, _ = self.compare([result(10)], states, states, "--moments", "bf16")
        self.assertEqual(2, len(summary["rows"]))
        self.assertEqual((compare_rows.ON, 1.2), only_row({"rows": summary["rows"][:1]}, "best_peer", "speed_to_best"))
        self.assertEqual(3.0, summary["rows"][1]["speed_to_best"])
        self.assertIn("  tessera, bf16 moments stores weight unknown, master unknown, moments unknown bytes a parameter", lines)

    def test_stored_bytes_of_tessera_follow_its_flags(self):
        program = compare_rows.Program([], compare_rows.TESSERA, moments="bf16")
        for extra, expected in (([], (2, 2, 4)), (["--masters", "fp32"], (2, 4, 4)), (["--masters=fp32"], (2, 4, 4)),
                                (["--wire-format", "fp8"], (None, None, 4)), (["--wire-rules=output.*=fp8"], (None, None, 4))):
            stored = compare_rows.stored_bytes(program, tessera_state(4), extra)
            self.assertEqual(expected, tuple(stored.get(key) for key in ("weight", "master", "moments")), extra)

    def test_moments_that_no_row_can_compare_are_refused(self):
        for options in (["--tp", "2", "--moments", "bf16"], ["--", "--moments", "bf16"], ["--", "--moments=bf16"], ["--moments", "fp8"]):
            done = subprocess.run([ROOT / "bench/compare.sh", "--gpus", "2", *options], capture_output=True, text=True, check=False)
            self.assertEqual(2, done.returncode)
            self.assertRegex(done.stderr, "--moments.* expected|--moments: invalid choice: 'fp8'")

    def test_experts_on_several_gpus_are_compared_with_fsdp2(self):
        ours = [result(10), result(8)] * 2  # two rounds: egtp, ep, peers; peers, ep, egtp
        ours[2:] = reversed(ours[2:])
        code, lines, summary, _ = self.compare(ours, [result(16)] * 2, [result(12)] * 2, "--model", "mixtral-8x7b", "--rounds", 2)
        self.assertEqual(code, 0, lines)
        self.assertEqual([compare_rows.TESSERA, compare_rows.TESSERA_EP, compare_rows.ON, compare_rows.OFF], list(summary["programs"]))
        self.assertEqual((1.2, 1.5), only_row(summary, "speed_to_best", "ep_speed_to_best"))
        calls = self.calls()
        self.assertTrue(" ".join(calls[0]).endswith("--gtp 2 --dtype bf16 --moments fp32 --json --routing even --egtp 2"), calls[0])
        self.assertTrue(" ".join(calls[1]).endswith("--gtp 2 --dtype bf16 --moments fp32 --json --routing even --ep 2"), calls[1])
        for call, value in zip(calls[2:], ("on", "off")):
            self.assertIn("--nproc-per-node 2", " ".join(call))
            self.assertTrue(any(pathlib.Path(word) == ROOT / "bench/peers/experts.py" for word in call))
            self.assertIn(f"--routing even --state fp32 --reshard {value}", " ".join(call))
        self.assertIn("  tessera, ep against the fastest peer (FSDP2, resharding off): 1.500 x", lines)

    def test_ratios_use_medians_and_the_greatest_memory(self):
        code, lines, summary, _ = self.compare(
            [result(90, 7e9, mfu=0.5, transport="push"), result(100, 9e9, mfu=0.6, transport="push"),
             result(500, 8e9, mfu=0.7, transport="nccl")],
            [result(130, 10e9), result(120, 10e9), result(1, 10e9)],
            [result(110, 20e9), result(105, 20e9), result(300, 20e9)])
        self.assertEqual(code, 0)
        self.assertEqual((compare_rows.OFF, 110 / 100), only_row(summary, "best_peer", "speed_to_best"))
        self.assertEqual((120 / 100, 9 / 10), only_row(summary, "speed_to_resharding", "memory_to_resharding"))
        self.assertEqual(summary["programs"]["tessera"]["mfu"], 0.6)
        self.assertNotIn("exposed_comm_ms", summary["programs"]["tessera"])
        self.assertIn("tessera: weights and gradients moved by nccl and push", lines)
        self.assertIn("  tessera against the fastest peer (FSDP2, resharding off): 1.100 x", lines)
        self.assertIn("  tessera against FSDP2, resharding on: 1.200 x, with 0.900 of its memory", lines)
        row = next(line.split() for line in lines if line.startswith("tessera  "))
        self.assertEqual(row, ["tessera", "100.0", "99.0", "101.0", f"{SEQ_LEN * MICRO_BATCH * 10}", "9.0"])

    def test_a_failed_peer_is_reported_and_the_others_run(self):
        fails = "sys.exit('[rank1]: torch.OutOfMemoryError: no room\\nx.ChildFailedError: \\n====')"
        code, lines, summary, errors = self.compare([result(10)], [fails], [result(12)])
        self.assertEqual(code, 0)
        self.assert_said(lines, compare_rows.ON, "OutOfMemoryError: no room")
        self.assertIn("no room", errors)
        self.assertEqual(set(summary["programs"]), {"tessera", compare_rows.OFF})
        self.assertEqual((1.2,), only_row(summary, "speed_to_best"))
        self.assertNotIn("speed_to_resharding", summary["rows"][0])

    def test_a_failure_of_tessera_is_exit_code_1_after_all_rounds(self):
        fails = "sys.exit('error: a bad flag')"
        code, lines, summary, _ = self.compare([result(10), fails], [result(20)] * 2, [result(20)] * 2)
        self.assertEqual(code, 1)
        self.assert_said(lines, "tessera: failed 1 times: exit code 1", "error: a bad flag")
        self.assertEqual(len(self.calls()), 6)
        self.assertEqual((2,), only_row(summary, "speed_to_best"))

    def test_without_tessera_there_is_no_ratio(self):
        code, _, summary, _ = self.compare(["sys.exit(3)"], [result(20)], [result(20)])
        self.assertEqual(code, 1)
        self.assertEqual(["row"], list(summary["rows"][0]))
        self.assertEqual(len(summary["programs"]), 2)

    def test_output_without_a_valid_result_has_failed(self):
        half = dict(result(10), tokens_per_second_per_gpu=result(10)["tokens_per_second_per_gpu"] / 2)
        code, lines, summary, _ = self.compare([half], ["pass"], [{"median_ms": 1}])
        self.assertEqual((code, summary["programs"]), (1, {}))
        text = "\n".join(lines)
        self.assertIn(f"did {SEQ_LEN * MICRO_BATCH // 2} tokens a GPU and step, expected {SEQ_LEN * MICRO_BATCH}", text)
        self.assertIn("no JSON object with median_ms, p10_ms", text)
        self.assertIn("no JSON object with p10_ms", text)

    def test_a_measurement_of_zero_has_failed(self):
        code, lines, summary, _ = self.compare([result(10, memory=0)], [result(20)], [result(20)])
        self.assertEqual((1, 2), (code, len(summary["programs"])))
        self.assert_said(lines, "tessera: failed 1 times", "measured nothing: peak_memory_bytes is 0")

    def test_a_loss_that_is_not_finite_has_failed(self):
        code, lines, summary, _ = self.compare([result(10, loss=None)], [result(20, loss=float("nan"))],
                                               [result(20, loss=float("inf"))])
        self.assertEqual((code, summary["programs"]), (1, {}))
        for name, loss in (("tessera", None), ("FSDP2, resharding on", float("nan")), ("FSDP2, resharding off", float("inf"))):
            self.assert_said(lines, f"{name}: failed 1 times", f"loss is not finite: loss is {loss}")

    def test_invalid_numbers_are_refused(self):
        for flag, value in (("gpus", 0), ("gpus", -1), ("layers", 0), ("limit", 0), ("rounds", 0), ("steps", 0),
                            ("seq-len", 0), ("micro-batch", -2), ("warmup", -1), ("layers", "x"), ("tp", 0), ("tp", 3)):
            done = subprocess.run([ROOT / "bench/compare.sh", "--gpus", "1", f"--{flag}", str(value)], capture_output=True,
                                  text=True, check=False)
            self.assertEqual(2, done.returncode)
            self.assertRegex(done.stderr, f"--{flag}: .*{value}")

    def test_the_peer_computes_the_same_quantiles_as_tessera(self):
        values = [100, 101, 102, 103, 110, 111, 112, 113]
        self.assertEqual([101, 110, 112], [quantile(values, part) for part in (0.1, 0.5, 0.9)])
        self.assertEqual([7] * 3, [quantile([7], part) for part in (0.1, 0.5, 0.9)])

    def test_a_lost_terminal_ends_the_running_program(self):
        hangs = f"pathlib.Path({str(self.folder / 'pid')!r}).write_text(str(__import__('os').getpid())); time.sleep(600)"
        for ignored in (False, True):  # nohup ignores SIGHUP
            for name in ("tessera", "on", "off"):
                (self.folder / name).write_text(json.dumps([hangs]))
            command = [ROOT / "bench/compare.sh", "--gpus", "1", "--rounds", "1", "--tessera", self.folder / "tessera.py",
                       "--python", self.folder / "peer.py"]
            state = signal.SIG_IGN if ignored else signal.SIG_DFL
            with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  preexec_fn=lambda state=state: signal.signal(signal.SIGHUP, state)) as program:
                end = time.monotonic() + 30
                while not ((self.folder / "pid").exists() and (self.folder / "pid").read_text()) and time.monotonic() < end:
                    time.sleep(0.05)
                pid = int((self.folder / "pid").read_text())
                program.send_signal(signal.SIGHUP)
                if ignored:
                    time.sleep(1)
                    self.assertIsNone(program.poll())
                    program.terminate()
                self.assertEqual(128 + (signal.SIGTERM if ignored else signal.SIGHUP), program.wait(20))
            self.assertTrue(ends(pid))
            (self.folder / "pid").unlink()

    def test_a_program_that_hangs_is_ended_with_its_children(self):
        hangs = (f"import subprocess; child = subprocess.Popen(['sleep', '600']); "
                 f"pathlib.Path({str(self.folder / 'child')!r}).write_text(str(child.pid)); time.sleep(600)")
        _, lines, summary, _ = self.compare([result(10)], [hangs], [result(10)], "--limit", "8")  # others end in time on a busy machine
        self.assert_said(lines, compare_rows.ON, "(its limit)")
        self.assertIn(compare_rows.OFF, summary["programs"])
        self.assertTrue(ends(int((self.folder / "child").read_text())))


def ends(pid, seconds=10):
    """Returns whether a process ends within some seconds. A zombie counts as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    os.kill(pid, 9)
    return False


if __name__ == "__main__":
    run_cases()
