#!/usr/bin/env python3
"""A program that waits for its data: what it loses by code that cannot make it faster. 0.99 and more is nothing.

    bench/back_end.py [--pairs N] [--seed N] [--whet PATH] [--json FILE]
"""

import argparse
import json
import mmap
import random
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from measure import Gauge, MeasureError, NoSides, Sides, evaluate, machine, take_windows  # noqa: E402
from server import die_with_parent, exit_on_signals  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

WINDOW, SETTLE = 0.2, 0.03
# It fills its array first.
WARM_UP = 5.0


class Followed:
    """Where the guest counts its work, in place of a server that is asked for it."""

    def __init__(self, page: mmap.mmap):
        self.page = page

    def status(self, _name: str) -> int:
        """Pointers followed so far."""
        return struct.unpack_from("<Q", self.page)[0]


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
    with tempfile.TemporaryDirectory(prefix="whet-chase-") as name:
        program, file = Path(name) / "chase", Path(name) / "page"
        source = Path(__file__).resolve().parent / "chase.c"
        file.write_bytes(bytes(4096))
        try:
            subprocess.run(["gcc", "-O2", str(source), "-o", str(program)], check=True)
            with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096) as page:
                process = subprocess.Popen([str(program), str(file)], preexec_fn=die_with_parent)
                try:
                    time.sleep(WARM_UP)
                    optimized = whet.run("optimize", process.pid)
                    gauge = Gauge(process.pid, Followed(page))
                    figures = {}
                    for what, sides in [("gain", Sides(whet, process.pid)), ("null", NoSides())]:
                        with sides:
                            windows = take_windows(gauge, sides, args.pairs, WINDOW, SETTLE, rng)
                        figures[what] = evaluate(windows, rng)
                finally:
                    process.kill()
                    process.wait()
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
