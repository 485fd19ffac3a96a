#!/usr/bin/env python3
"""Measures programs that are no servers. Each guest counts its work, and windows with and without clones are
measured in turn.

    back_end    A program that waits for its data, which clones cannot make faster. 0.99 and more of the work per
                CPU is no loss.
    unwinding   Programs that unwind their stacks without end, 24 frames deep: exceptions of C++ and panics of
                Rust. 0.995 and more of the work per CPU is no loss.

    bench/guest_gain.py [--pairs N] [--seed N] [--whet PATH] [--json FILE] BENCHMARK
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from guest import running  # noqa: E402
from measure import Gauge, MeasureError, NoSides, Sides, evaluate, machine, take_windows  # noqa: E402
from server import exit_on_signals  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

WINDOW, PAUSE = 0.2, 0.03

# The guests of each benchmark, with the seconds that each needs to warm up: `chase` first fills its array.
BENCHMARKS = {"back_end": {"chase": 5.0}, "unwinding": {"throwing": 2.0, "panics": 2.0}}


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
                windows = take_windows(gauge, sides, pairs, WINDOW, PAUSE, rng)
            figures[what] = evaluate(windows, rng)
    return figures


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("benchmark", choices=BENCHMARKS)
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, help="default: bench/out/BENCHMARK.json")
    args = p.parse_args()
    name = args.benchmark
    args.json = args.json or Path(__file__).resolve().parent / "out" / f"{name}.json"
    whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    try:
        figures = {g: compare(whet, g, warm_up, args.pairs, rng) for g, warm_up in BENCHMARKS[name].items()}
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


if __name__ == "__main__":
    sys.exit(main())
