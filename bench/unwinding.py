#!/usr/bin/env python3
"""Programs that unwind their stacks without end, 24 frames deep: exceptions of C++ and panics of Rust. 0.995 and more of the
work per CPU is no loss.

    bench/unwinding.py [--pairs N] [--seed N] [--whet PATH] [--json FILE]
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
WARM_UP = 2.0
GUESTS = ("throwing", "panics")


class Caught:
    """Where the guest counts what it caught, in place of a server that is asked for it."""

    def __init__(self, count: Callable[[int], int]):
        self.count = count

    def status(self, _name: str) -> int:
        """Caught so far."""
        return self.count(0)


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "unwinding.json")
    args = p.parse_args()
    whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    figures = {}
    try:
        for guest in GUESTS:
            with running(guest) as (pid, count):
                time.sleep(WARM_UP)
                figures[guest] = {"optimize": whet.run("optimize", pid)}
                gauge = Gauge(pid, Caught(count))
                for what, sides in [("gain", Sides(whet, pid)), ("null", NoSides())]:
                    with sides:
                        windows = take_windows(gauge, sides, args.pairs, WINDOW, SETTLE, rng)
                    figures[guest][what] = evaluate(windows, rng)
    except (MeasureError, WhetError, OSError, subprocess.CalledProcessError) as e:
        print(f"unwinding: {e}", file=sys.stderr)
        return 1
    args.json.write_text(json.dumps({**figures, "machine": machine()}, indent=1))
    for guest in GUESTS:
        for what in ("gain", "null"):
            e = figures[guest][what]["cpu_per_query"]
            print(f"{guest}, {what}: work per CPU x{e['ratio']:.3f} ({e['low']:.3f}-{e['high']:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
