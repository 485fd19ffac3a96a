#!/usr/bin/env python3
"""Measures what an optimized MariaDB gains, with a method that is valid on a noisy machine.

Two short windows make a pair: one with whet's clones, one without, in random order, with `whet redo` and
`whet undo` between them. Whatever drifts (the host's other guests, the buffer pool, the clock rate) is nearly
the same for both halves of a pair. So the ratio within a pair is good even if single runs differ by half. The
result is the median of the ratios with a 95% bootstrap interval. `--null` is the A/A control: it leaves whet
out and so measures the method itself. Its interval must contain 1.

The load must be running already, and the target be optimized. At the end the target is in the state in which
it was found.

`whet measure` uses the same method on one server. This program stays beside it for what that command cannot do: the
A/A control; windows of two servers, as bench/bolt.py compares; work that a guest counts itself
(bench/guest_gain.py). It shares no code with whet, so it also confirms that command's figures.

The figures are ratios: 1.00 is no difference, more is a gain.
  CPU per query        the server's CPU time per query, without / with     (the one to quote: the client is not in it)
  throughput           queries per second, with / without
  user CPU per query   as the first, user mode alone, pooled over all windows of a side (the kernel splits user from
                       system by sampling ticks, too coarse for single windows); its interval resamples whole pairs
"""

import argparse
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from mysql_wire import Connection, MysqlError
from server import exit_on_signals
from whet_cli import Whet, WhetError

RESAMPLES = 10_000
TICK = 1 / os.sysconf("SC_CLK_TCK")
T = TypeVar("T")


class MeasureError(Exception):
    """There is no valid result; the text says why."""


@dataclass
class Window:
    """One window of one side."""

    pair: int
    side: str
    queries: int
    seconds: float
    cpu: float
    user: float
    system: float
    # Windows of one group share more than a pair does: the server process, the layout of its memory.
    group: int = 0


@dataclass
class Estimate:
    """A ratio and its 95% interval."""

    ratio: float
    low: float
    high: float


def cpu_clock(pid: int) -> float:
    """Returns the CPU seconds of a process.

    This is the process's CPU clock, read from outside: the same nanoseconds as the sum of
    /proc/PID/task/*/schedstat, but in one system call, and with the threads that have ended. The number is
    the kernel's MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED (include/linux/posix-timers.h), as
    clock_getcpuclockid(3) computes it.
    """
    return time.clock_gettime((~pid << 3) | 2)


def cpu_ticks(pid: int) -> tuple[float, float]:
    """Returns the user and system seconds of a process, in the kernel's coarse split."""
    # The name in the second field may hold blanks and parentheses. The text behind the last parenthesis is
    # regular.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) * TICK, int(fields[12]) * TICK


class Gauge:
    """Reads the server's counters."""

    def __init__(self, pid: int, connection: Connection):
        self.pid = pid
        self.connection = connection

    def read(self) -> tuple[int, float, float]:
        """Reads queries so far, time and CPU time. Both times are those of the middle of the query for the
        first."""
        time_before, cpu_before = time.monotonic(), cpu_clock(self.pid)
        queries = self.connection.status("Questions")
        time_after, cpu_after = time.monotonic(), cpu_clock(self.pid)
        return queries, (time_before + time_after) / 2, (cpu_before + cpu_after) / 2

    def window(self, pair: int, side: str, seconds: float) -> Window:
        """Measures one window."""
        user, system = cpu_ticks(self.pid)
        queries, began, cpu = self.read()
        time.sleep(seconds)
        queries_after, ended, cpu_after = self.read()
        user_after, system_after = cpu_ticks(self.pid)
        return Window(
            pair=pair,
            side=side,
            # The server counts this statement before it answers it, so exactly one statement of the gauge is
            # in the difference.
            queries=queries_after - queries - 1,
            seconds=ended - began,
            cpu=cpu_after - cpu,
            user=user_after - user,
            system=system_after - system,
        )


class Sides:
    """Brings the target to the wanted side, and at the end back to the state in which it was found."""

    def __init__(self, whet: Whet, pid: int):
        self.whet = whet
        self.pid = pid

    def __enter__(self) -> "Sides":
        self.found = self.now = self.whet.state(self.pid)
        if self.found not in ("optimized", "undone"):
            state = self.found or "not optimized"
            raise MeasureError(f"process {self.pid} is {state}; run `whet optimize {self.pid}` under load first")
        return self

    def __exit__(self, *_: object) -> None:
        self.go(self.found)

    def go(self, state: str | None) -> None:
        """Runs undo or redo, unless the target is in the state already. In random order both sides need this
        equally often."""
        if state != self.now:
            # Set only after success: an interrupted toggle is repeated at the end.
            self.now = None
            self.whet.run("redo" if state == "optimized" else "undo", self.pid)
            self.now = state


class NoSides:
    """The sides with `--null`: both are the target as it is."""

    def __enter__(self) -> "NoSides":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def go(self, _state: str) -> None:
        """Does nothing."""


def take_windows(
    gauge: Gauge, sides: Sides | NoSides, pairs: int, window: float, pause: float, rng: random.Random
) -> list[Window]:
    """Measures all windows, and returns them in the order in which they were measured."""
    state = {"with": "optimized", "without": "undone"}
    windows = []
    for pair in range(pairs):
        order = ["with", "without"]
        rng.shuffle(order)
        for side in order:
            sides.go(state[side])
            time.sleep(pause)
            windows.append(gauge.window(pair, side, window))
        if sys.stderr.isatty():
            print(f"\rmeasuring: pair {pair + 1} of {pairs} ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return windows


def bootstrap(
    groups: list[list[T]], rng: random.Random, resamples: int = RESAMPLES, of: Callable[[list[T]], float] = median
) -> Estimate:
    """Returns a figure of all values, the median by default, with the 95% interval of the percentile bootstrap: groups
    are drawn, then values in each group."""

    def resampled() -> float:
        drawn = rng.choices(groups, k=len(groups)) if len(groups) > 1 else groups
        return of([value for group in drawn for value in rng.choices(group, k=len(group))])

    figures = sorted(resampled() for _ in range(resamples))

    def at(share: float) -> float:
        return figures[round(share * (resamples - 1))]

    return Estimate(of([value for group in groups for value in group]), at(0.025), at(0.975))


def whole_pairs(windows: list[Window]) -> list[dict[str, Window]]:
    """Returns the pairs, by side, in which the server worked in both windows."""
    pairs: dict[int, dict[str, Window]] = {}
    for w in windows:
        pairs.setdefault(w.pair, {})[w.side] = w
    return [p for p in pairs.values() if len(p) == 2 and all(w.queries > 0 and w.cpu > 0 for w in p.values())]


def user_gain(pairs: list[dict[str, Window]]) -> float:
    """Returns user CPU per query without clones over with clones, pooled, since single windows have few ticks."""

    def per_query(side: str) -> float:
        # In a resample, a side without a tick counts as one with a tick.
        return max(TICK, sum(p[side].user for p in pairs)) / sum(p[side].queries for p in pairs)

    return per_query("without") / per_query("with")


def evaluate(windows: list[Window], rng: random.Random) -> dict:
    """Computes the figures of the windows. Pairs with a window in which the server did nothing are left out,
    and counted."""
    whole = whole_pairs(windows)
    taken = len({w.pair for w in windows})
    if len(whole) < max(2, taken // 2):
        raise MeasureError(f"only {len(whole)} of {taken} pairs saw queries; is the load running?")

    def per_query(w: Window) -> float:
        return w.cpu / w.queries

    def rate(w: Window) -> float:
        return w.queries / w.seconds

    def side(name: str) -> dict:
        mine = [p[name] for p in whole]
        queries = sum(w.queries for w in mine)
        user, system = sum(w.user for w in mine), sum(w.system for w in mine)
        return {
            "queries": queries,
            "queries_per_second": median(map(rate, mine)),
            "cpu_us_per_query": median(map(per_query, mine)) * 1e6,
            "user_cpu_us_per_query": user / queries * 1e6,
            "user_share": user / (user + system) if user + system else 0.0,
        }

    sides = {name: side(name) for name in ("with", "without")}
    # Without a tick there is nothing to compare.
    ticks = all(s["user_cpu_us_per_query"] for s in sides.values())
    grouped: dict[int, list[dict[str, Window]]] = {}
    for p in whole:
        grouped.setdefault(p["with"].group, []).append(p)
    groups = list(grouped.values())

    def estimate(ratio: Callable[[dict[str, Window]], float]) -> dict:
        return asdict(bootstrap([list(map(ratio, group)) for group in groups], rng))

    return {
        "cpu_per_query": estimate(lambda p: per_query(p["without"]) / per_query(p["with"])),
        "throughput": estimate(lambda p: rate(p["with"]) / rate(p["without"])),
        "user_cpu_per_query": asdict(bootstrap(groups, rng, of=user_gain)) if ticks else None,
        **sides,
        "pairs_used": len(whole),
        "pairs_void": taken - len(whole),
    }


def machine() -> dict:
    """Describes the host."""
    found = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": found[0].partition(":")[2].strip() if found else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }


def measure(
    pid: int,
    socket: str,
    *,
    pairs: int = 150,
    window: float = 0.2,
    pause: float = 0.03,
    seed: int | None = None,
    null: bool = False,
    whet: Whet | None = None,
    user: str = "root",
) -> dict:
    """Measures the windows and evaluates them."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    rng = random.Random(seed)
    began = time.monotonic()
    sides = NoSides() if null else Sides(whet or Whet(), pid)
    with Connection(socket, user) as connection, sides:
        windows = take_windows(Gauge(pid, connection), sides, pairs, window, pause, rng)
    result = evaluate(windows, rng)
    result["method"] = {
        "pairs": pairs,
        "window_seconds": window,
        "pause_seconds": pause,
        "null": null,
        "seed": seed,
        "estimate": "median of paired ratios; of user CPU, the ratio pooled over all windows",
        "interval": f"95%, percentile bootstrap, {RESAMPLES} resamples",
        "took_seconds": round(time.monotonic() - began, 1),
    }
    result["machine"] = machine()
    result["windows"] = [asdict(w) for w in windows]
    return result


def table(result: dict) -> str:
    """Formats the figures for the user."""
    method, here = result["method"], result["machine"]
    left, right = ("A", "B") if method["null"] else ("without", "with")

    def line(name: str, key: str, digits: int, ratio: str) -> str:
        return f"  {name:<22}{result['without'][key]:>10,.{digits}f}{result['with'][key]:>10,.{digits}f}   {ratio}"

    def interval(e: dict | None) -> str:
        return "-" if e is None else f"x{e['ratio']:.3f}  (95%: {e['low']:.3f} to {e['high']:.3f})"

    lines = [
        f"  {'':<22}{left:>10}{right:>10}   gain" if not method["null"] else f"  {'A/A control':<22}{left:>10}{right:>10}",
        line("CPU per query, us", "cpu_us_per_query", 2, interval(result["cpu_per_query"])),
        line("queries per second", "queries_per_second", 0, interval(result["throughput"])),
        line("user CPU per query, us", "user_cpu_us_per_query", 2, interval(result["user_cpu_per_query"])),
        f"  {result['pairs_used']} pairs of {method['window_seconds']} s windows in random order (seed {method['seed']})"
        + (f", {result['pairs_void']} void" if result["pairs_void"] else "")
        + f"; {here['cpu']}, {here['cores']} cores, Linux {here['kernel']}",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pid", type=int, required=True, help="the server")
    parser.add_argument("--socket", required=True, help="its unix socket")
    parser.add_argument("--user", default="root", help="a database account without a password, or one by unix_socket")
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--window", type=float, default=0.2, help="seconds")
    parser.add_argument("--pause", type=float, default=0.03, help="seconds before each window")
    parser.add_argument("--whet", help="the binary (default: $WHET, else target/release/whet)")
    parser.add_argument("--seed", type=int, help="of the order and the bootstrap (default: drawn, and printed)")
    parser.add_argument("--null", action="store_true", help="never toggle: measure the method itself")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and raw windows there")
    options = parser.parse_args()
    if options.pairs < 2 or options.window <= 0 or options.pause < 0:
        parser.error("at least 2 pairs, and windows longer than nothing")

    exit_on_signals()
    try:
        result = measure(
            options.pid,
            options.socket,
            pairs=options.pairs,
            window=options.window,
            pause=options.pause,
            seed=options.seed,
            null=options.null,
            whet=Whet(options.whet),
            user=options.user,
        )
    except KeyboardInterrupt:
        return 130
    except (MeasureError, MysqlError, WhetError, OSError) as e:
        print(f"measure.py: {e}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
