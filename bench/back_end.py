#!/usr/bin/env python3
"""A program that waits for its data: what it loses by code that cannot make it faster. 0.99 and more is nothing.

    bench/back_end.py [--pairs N] [--seed N] [--whet PATH] [--json FILE]
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

WINDOW, SETTLE = 0.2, 0.03
# It fills its array first.
WARM_UP = 5.0


class Followed:
    """Where the guest counts its work, in place of a server that is asked for it."""

    def __init__(self, count: Callable[[int], int]):
        self.count = count

    def status(self, _name: str) -> int:
        """Pointers followed so far."""
        return self.count(0)


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "back-end.json")
    args = p.parse_args()
    whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    try:
        with running("chase") as (pid, count):
            time.sleep(WARM_UP)
            optimized = whet.run("optimize", pid)
            gauge = Gauge(pid, Followed(count))
            figures = {}
            for what, sides in [("gain", Sides(whet, pid)), ("null", NoSides())]:
                with sides:
                    windows = take_windows(gauge, sides, args.pairs, WINDOW, SETTLE, rng)
                figures[what] = evaluate(windows, rng)
    except (MeasureError, WhetError, OSError, subprocess.CalledProcessError) as e:
        print(f"back_end: {e}", file=sys.stderr)
        return 1
    args.json.write_text(json.dumps({"optimize": optimized, **figures, "machine": machine()}, indent=1))
    for what, result in figures.items():
        for figure in ("cpu_per_query", "throughput"):
            e = result[figure]
            print(f"{what}, {figure.replace('query', 'pointer')}: x{e['ratio']:.3f} ({e['low']:.3f}-{e['high']:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
