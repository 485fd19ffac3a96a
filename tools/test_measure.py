#!/usr/bin/env python3
"""Tests the parts of measure.py that need no server: the statistics, the clocks, the restore of the
target."""

import random
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import replace
from pathlib import Path

import mysql_wire
from measure import MeasureError, Sides, Window, bootstrap, cpu_clock, evaluate, table
from plain_result import run_and_tell
from whet_cli import Whet, WhetError

# Keeps the state in a file. If the file FAIL exists, it fails after half of the change.
FAKE_WHET = """#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path(__file__).parent
state, fail = here / "state", here / "FAIL"
word, pid = sys.argv[1], int(sys.argv[2])
if word == "status":
    known = [{"pid": pid, "state": state.read_text()}] if state.exists() else []
    print(json.dumps({"targets": known}))
elif fail.exists():
    fail.unlink()
    state.write_text("interrupted")
    sys.exit("busy")
else:
    state.write_text({"undo": "undone", "redo": "optimized"}[word])
    print("{}")
"""


def windows(pairs: int, gain: float, noise: float, rng: random.Random) -> list[Window]:
    """Makes windows: the machine drifts by far more than the gain, and each window has a little noise of its
    own."""
    made = []
    for pair in range(pairs):
        drift = rng.uniform(0.5, 2.0)
        for side in ("with", "without"):
            cost = drift * rng.uniform(1 - noise, 1 + noise) * (gain if side == "without" else 1)
            queries = round(1e6 / cost)
            made.append(Window(pair, side, queries, seconds=0.2, cpu=0.2, user=0.15, system=0.05))
    return made


class Statistics(unittest.TestCase):
    def test_a_gain_is_found_under_drift(self) -> None:
        result = evaluate(windows(100, 1.20, 0.05, random.Random(1)), random.Random(2))
        for figure in ("cpu_per_query", "throughput", "user_cpu_per_query"):
            e = result[figure]
            self.assertAlmostEqual(e["ratio"], 1.20, delta=0.02)
            self.assertTrue(1.15 < e["low"] < e["ratio"] < e["high"] < 1.25, e)

    def test_no_gain_gives_an_interval_around_1(self) -> None:
        e = evaluate(windows(100, 1.0, 0.05, random.Random(3)), random.Random(4))["cpu_per_query"]
        self.assertTrue(e["low"] < 1 < e["high"], e)

    def test_about_95_percent_of_intervals_hold_the_true_value(self) -> None:
        rng = random.Random(5)
        held = 0
        for _ in range(40):
            ratios = [rng.lognormvariate(0, 0.2) for _ in range(60)]
            e = bootstrap([ratios], rng, resamples=500)
            held += e.low <= 1 <= e.high
        # 95% of 40 is 38. Fewer than 34 would be a chance of one in a hundred.
        self.assertGreaterEqual(held, 34)

    def test_common_noise_of_groups_widens_the_interval(self) -> None:
        rng = random.Random(10)
        held = {True: 0, False: 0}
        for _ in range(40):
            groups = []
            for _ in range(6):
                common = rng.lognormvariate(0, 0.1)
                groups.append([common * rng.lognormvariate(0, 0.05) for _ in range(10)])
            for grouped in held:
                e = bootstrap(groups if grouped else [sum(groups, [])], rng, resamples=300)
                held[grouped] += e.low <= 1 <= e.high
        # Few groups make the interval a little short. Without groups it rarely holds the true value.
        self.assertGreaterEqual(held[True], 32)
        self.assertLess(held[False], 25)

    def test_windows_are_grouped_by_their_group_field(self) -> None:
        rng = random.Random(11)
        made = windows(60, 1.0, 0.01, rng)
        common = [rng.lognormvariate(0, 0.1) for _ in range(6)]

        def width(grouped: bool) -> float:
            mine = [
                replace(w, group=w.pair // 10 * grouped, cpu=w.cpu * (common[w.pair // 10] if w.side == "without" else 1))
                for w in made
            ]
            e = evaluate(mine, random.Random(12))["cpu_per_query"]
            return e["high"] - e["low"]

        self.assertGreater(width(True), 1.5 * width(False))

    def test_the_seed_decides(self) -> None:
        made = windows(20, 1.1, 0.1, random.Random(6))
        self.assertEqual(evaluate(made, random.Random(7)), evaluate(made, random.Random(7)))

    def test_idle_pairs_are_left_out_and_counted(self) -> None:
        made = windows(10, 1.1, 0.0, random.Random(8))
        made[3].queries = 0
        result = evaluate(made, random.Random(9))
        self.assertEqual((result["pairs_used"], result["pairs_void"]), (9, 1))

    def test_without_a_tick_there_is_no_figure_of_user_cpu(self) -> None:
        made = [replace(w, user=w.user * (w.side == "with")) for w in windows(10, 1.1, 0.0, random.Random(8))]
        result = evaluate(made, random.Random(9))
        self.assertIsNone(result["user_cpu_per_query"])
        self.assertIsNotNone(result["cpu_per_query"])

    def test_no_load_is_no_answer(self) -> None:
        made = windows(10, 1.1, 0.0, random.Random(8))
        for w in made:
            w.queries = 0
        with self.assertRaises(MeasureError):
            evaluate(made, random.Random(9))

    def test_the_table_can_be_printed(self) -> None:
        result = evaluate(windows(10, 1.25, 0.0, random.Random(1)), random.Random(2))
        result["method"] = {"null": False, "window_seconds": 0.2, "seed": 3}
        result["machine"] = {"cpu": "some", "cores": 2, "kernel": "6"}
        self.assertIn("x1.250", table(result))


class Clocks(unittest.TestCase):
    def test_the_cpu_clock_is_the_sum_of_schedstat(self) -> None:
        script = "import threading\nfor _ in range(2): threading.Thread(target=lambda: sum(range(1 << 40))).start()"
        with subprocess.Popen([sys.executable, "-c", script]) as child:
            try:
                time.sleep(0.5)
                child.send_signal(19)  # SIGSTOP: both readings are of the same state
                time.sleep(0.1)
                tasks = Path(f"/proc/{child.pid}/task").iterdir()
                ns = sum(int((t / "schedstat").read_text().split()[0]) for t in tasks)
                self.assertGreater(ns, 50_000_000)
                self.assertAlmostEqual(cpu_clock(child.pid), ns / 1e9, places=6)
            finally:
                child.kill()


class WayBack(unittest.TestCase):
    """The target ends in the state in which it was found."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.here = Path(scratch.name)
        self.state = self.here / "state"
        self.state.write_text("optimized")
        whet = self.here / "whet"
        whet.write_text(FAKE_WHET)
        whet.chmod(0o755)
        self.whet = Whet(str(whet))

    def test_after_success(self) -> None:
        with Sides(self.whet, 1) as sides:
            sides.go("undone")
            self.assertEqual(self.state.read_text(), "undone")
        self.assertEqual(self.state.read_text(), "optimized")

    def test_after_an_interrupt(self) -> None:
        with self.assertRaises(KeyboardInterrupt), Sides(self.whet, 1) as sides:
            sides.go("undone")
            raise KeyboardInterrupt
        self.assertEqual(self.state.read_text(), "optimized")

    def test_after_a_toggle_that_failed_half_way(self) -> None:
        with self.assertRaises(WhetError), Sides(self.whet, 1) as sides:
            (self.here / "FAIL").touch()
            sides.go("undone")
        self.assertEqual(self.state.read_text(), "optimized")

    def test_a_target_that_is_not_optimized_is_refused(self) -> None:
        self.state.unlink()
        with self.assertRaises(MeasureError), Sides(self.whet, 1):
            pass


class Wire(unittest.TestCase):
    def test_length_encoded_integers(self) -> None:
        for data, value in [
            (b"\x00", 0),
            (b"\xfa", 250),
            (b"\xfb", None),
            (b"\xfc\x34\x12", 0x1234),
            (b"\xfd\x56\x34\x12", 0x123456),
            (b"\xfe\x08\x07\x06\x05\x04\x03\x02\x01", 0x0102030405060708),
        ]:
            self.assertEqual(mysql_wire.lenenc(data, 0), (value, len(data)))

    def test_rows(self) -> None:
        self.assertEqual(mysql_wire.text_row(b"\x09Questions\x03171\xfb\x00"), ["Questions", "171", None, ""])


if __name__ == "__main__":
    sys.exit(run_and_tell())
