#!/usr/bin/env python3
"""Measures the cost of counting while it lasts: work with counting clones in force, compared with before. Work is
counted per second, and per second of the target's CPU time, which other work on the machine does not change.

There are two targets: a guest whose threads call one small function all the time, and MariaDB under sysbench. `whet
optimize --count` runs on each, while the work is read every 50 ms. Whether counting clones are in force is
read from the target's journal, as `whet status` shows it. Prints a line for each target and writes all
figures to a JSON file.

    bench/counting.py [--threads N] [--count SECONDS] [--whet PATH] [--json FILE] [guest|server]...
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from guest import running as guest_running  # noqa: E402
from loaded import loaded  # noqa: E402
from mysql_wire import Connection, MysqlError  # noqa: E402
from server import ServerError, exit_on_signals  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

BEFORE = 4.0
STEP = 0.05


TICK = os.sysconf("SC_CLK_TCK")


def cpu(pid: int) -> float:
    """Returns the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@dataclass
class Reading:
    """Work and CPU time up to a moment."""

    at: float
    work: int
    cpu: float
    counting: bool = False


def rate(readings: list[tuple[Reading, Reading]]) -> tuple[float, float]:
    """Returns the work per second, and per second of CPU time, over some spans."""
    work = sum(b.work - a.work for a, b in readings)
    seconds = sum(b.at - a.at for a, b in readings)
    used = sum(b.cpu - a.cpu for a, b in readings)
    return work / seconds, work / max(used, 1 / TICK)


def rates(pid: int, work: Callable[[], int], optimize: Callable[[], dict], whet: Whet) -> dict:
    """Returns the work per second before, with counters in force, and from the first to the last moment with
    counters."""
    answer: dict = {}

    def run() -> None:
        try:
            answer.update(optimize())
        except WhetError as e:
            answer["error"] = str(e)

    def read(counting: bool = False) -> Reading:
        return Reading(time.monotonic(), work(), cpu(pid), counting)

    first = read()
    time.sleep(BEFORE)
    before = rate([(first, read())])
    thread = threading.Thread(target=run)
    thread.start()
    readings = [read()]
    while thread.is_alive():
        time.sleep(STEP)
        readings.append(read(whet.state(pid) == "counting"))
    thread.join()
    if "error" in answer:
        raise WhetError(answer["error"])
    spans = list(zip(readings, readings[1:]))
    counted = [(a, b) for a, b in spans if a.counting and b.counting]
    if not counted:
        raise WhetError("counting was never seen in force")
    begin, end = counted[0][0].at, counted[-1][1].at
    phase = rate([(a, b) for a, b in spans if begin <= a.at and b.at <= end])
    counting = rate(counted)
    return {
        "before": round(before[0]),
        "counting": round(counting[0]),
        "phase": round(phase[0]),
        "phase_seconds": round(end - begin, 2),
        "counting_share": round(counting[0] / before[0], 3),
        "counting_share_by_cpu": round(counting[1] / before[1], 3),
        "phase_share": round(phase[0] / before[0], 3),
        "phase_share_by_cpu": round(phase[1] / before[1], 3),
        "optimize": answer,
    }


def guest(args: argparse.Namespace) -> dict:
    """Measures threads that call one function all the time."""
    with guest_running("hammer", str(args.threads)) as (pid, count):
        time.sleep(1)
        return rates(pid, lambda: sum(count(64 * i) for i in range(args.threads)), lambda: optimize(pid, args), args.whet)


def server(args: argparse.Namespace) -> dict:
    """Measures MariaDB under a load."""
    with loaded("mariadb", "oltp_read_only", 4) as running, Connection(running.socket) as connection:
        return rates(
            running.pid,
            lambda: connection.status("Questions"),
            lambda: optimize(running.pid, args),
            args.whet,
        )


def optimize(pid: int, args: argparse.Namespace) -> dict:
    """Runs `whet optimize` with counting."""
    return args.whet.run("optimize", pid, "--count", args.count)


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=8, help="of the guest")
    p.add_argument("--count", type=float, default=1.0, help="seconds of a round of counting")
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "counting.json")
    p.add_argument("targets", nargs="*", default=["guest", "server"])
    args = p.parse_args()
    args.whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    results = {"cpus": os.cpu_count()}
    try:
        for target in args.targets:
            r = results[target] = {"guest": guest, "server": server}[target](args)
            args.json.write_text(json.dumps(results, indent=1))
            print(
                f"{target}: {r['before']}/s before, {r['counting']}/s with counters in force "
                f"({r['counting_share']:.0%}; by CPU time {1 / r['counting_share_by_cpu']:.2f} times slower), "
                f"{r['phase']}/s over the whole phase of {r['phase_seconds']} s ({r['phase_share']:.0%}); "
                f"{r['optimize']['counting']}",
                flush=True,
            )
    except (MysqlError, ServerError, WhetError, OSError, subprocess.CalledProcessError) as e:
        print(f"counting: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
