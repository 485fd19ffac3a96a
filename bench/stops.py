#!/usr/bin/env python3
"""Measures for how long a program with many threads is stopped: by `undo` and `redo` in turn, and by rebuilds
with their mappings.

    bench/stops.py [--threads N] [--computing N] [--toggles N] [--rebuilds N] [--whet PATH] [--json FILE]

After each toggle, `bare_stop.c` stops the same process and does nothing else: this is the minimum on this
machine at that time (`bare`). Without --threads two shapes are measured: 1,001 threads of which 500 compute,
and 65 threads of which 8 compute, as in a server with 64 connections. More than twice as many threads as CPUs
compute, since threads that wait for a CPU take longest to stop.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from guest import build, running  # noqa: E402
from measure import machine  # noqa: E402
from server import exit_on_signals  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

SHAPES = [(1001, 500), (65, 8)]
WARM_UP = 2.0
# All rebuilds clone the same functions, so each has the same work.
REBUILD = ("--shuffle", "1", "--only", *(f"step{n}" for n in range(1, 9)))


def spread(values: list[float]) -> dict:
    """Returns median, 99th percentile (by nearest rank: of 100 stops one may be longer) and maximum, in
    ms."""
    values = sorted(values)

    def at(share: float) -> float:
        return values[math.ceil(share * len(values)) - 1]

    return {"p50": at(0.5), "p99": at(0.99), "max": values[-1], "stops": len(values)}


def bare_stop(program: Path, pid: int) -> float:
    """Stops a process and does nothing else. Returns how long that took, in ms."""
    done = subprocess.run([program, str(pid)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def shape(whet: Whet, threads: int, computing: int, toggles: int, rebuilds: int) -> dict:
    """Measures the stops of one program."""
    with (
        tempfile.TemporaryDirectory(prefix="whet-bare-stop-") as folder,
        running("threads", str(threads), str(computing)) as (pid, count),
    ):
        bare_program = Path(folder) / "bare_stop"
        build("bare_stop", bare_program)
        while count(8) == 0:
            time.sleep(0.01)
        time.sleep(WARM_UP)
        optimized = [whet.run("optimize", pid, *REBUILD) for _ in range(rebuilds)]
        toggled, bare = [], []
        for n in range(toggles):
            toggled.append(whet.run(("undo", "redo")[n % 2], pid))
            bare.append(bare_stop(bare_program, pid))
    return {
        "threads": threads,
        "computing": computing,
        "toggle": spread([t["stop_ms"]["max"] for t in toggled]),
        "bare": spread(bare),
        "rebuild": spread([o["stop_ms"]["max"] for o in optimized]),
        "mapping": spread([o["map_stop_ms"] for o in optimized]),
    }


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int)
    p.add_argument("--computing", type=int, default=1)
    p.add_argument("--toggles", type=int, default=100)
    p.add_argument("--rebuilds", type=int, default=10)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "stops.json")
    args = p.parse_args()
    whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    shapes = SHAPES if args.threads is None else [(args.threads, args.computing)]
    try:
        results = [shape(whet, *s, args.toggles, args.rebuilds) for s in shapes]
    except (WhetError, OSError, subprocess.CalledProcessError) as e:
        print(f"stops: {e}", file=sys.stderr)
        return 1
    args.json.write_text(json.dumps({"shapes": results, "machine": machine()}, indent=1))
    for r in results:
        print(f"{r['threads']} threads, {r['computing']} computing; ms")
        for what in ("toggle", "bare", "rebuild", "mapping"):
            s = r[what]
            print(f"  {what:8} p50 {s['p50']:6.2f}  p99 {s['p99']:6.2f}  max {s['max']:6.2f}  ({s['stops']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
