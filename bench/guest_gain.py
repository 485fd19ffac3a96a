"""Benchmarks of programs that are no servers: each guest counts its work, and windows with and without clones
are measured in turn."""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

from guest import running
from measure import Gauge, MeasureError, NoSides, Sides, evaluate, machine, take_windows
from server import exit_on_signals
from whet_cli import Whet, WhetError

WINDOW, SETTLE = 0.2, 0.03


class Counted:
    """The guest's counter of its work, in place of a server's statement counter."""

    def __init__(self, count: Callable[[int], int]):
        self.count = count

    def status(self, _name: str) -> int:
        """Returns the units of work so far."""
        return self.count(0)


def compare(whet: Whet, guest: str, warm_up: float, pairs: int, rng: random.Random) -> dict:
    """Measures one guest after `warm_up` seconds: the output of `optimize`, the gain, and the A/A control
    (`null`)."""
    with running(guest) as (pid, count):
        time.sleep(warm_up)
        figures = {"optimize": whet.run("optimize", pid)}
        gauge = Gauge(pid, Counted(count))
        for what, sides in [("gain", Sides(whet, pid)), ("null", NoSides())]:
            with sides:
                windows = take_windows(gauge, sides, pairs, WINDOW, SETTLE, rng)
            figures[what] = evaluate(windows, rng)
    return figures


def main(name: str, description: str, guests: dict[str, float]) -> int:
    """Runs the benchmark `name` on its guests, given with the seconds that each needs to warm up. Returns the
    exit status."""
    exit_on_signals()
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / f"{name}.json")
    args = p.parse_args()
    whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    try:
        figures = {g: compare(whet, g, warm_up, args.pairs, rng) for g, warm_up in guests.items()}
    except (MeasureError, WhetError, OSError, subprocess.CalledProcessError) as e:
        print(f"{name}: {e}", file=sys.stderr)
        return 1
    args.json.write_text(json.dumps({"guests": figures, "machine": machine()}, indent=1))
    for guest, of_guest in figures.items():
        for what in ("gain", "null"):
            for figure, words in (("cpu_per_query", "work per CPU"), ("throughput", "throughput")):
                e = of_guest[what][figure]
                print(f"{guest}, {what}, {words}: x{e['ratio']:.3f} ({e['low']:.3f}-{e['high']:.3f})")
    return 0
