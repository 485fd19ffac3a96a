#!/usr/bin/env python3
"""Measures what a family gains: PostgreSQL under pgbench, with clones and without in turns, by `whet redo
--family` and `whet undo --family`.

A window lasts from one report of pgbench to another, and counts transactions and the CPU time of all processes
of the server. A round has one window with clones and two without, in random order. Prints the median ratio of
all rounds with its 95% bootstrap interval. The ratio of the two windows without clones is the A/A control.

Loads: `select-only` and `tpc-b` are pgbench's own; `reconnect` is select-only with a new connection for each
transaction; `analytic` runs six queries like TPC-H's over tables in memory.

With `--large N`, measures time and memory instead: N connections are optimized, undone and redone. They are busy all of
the time, unless `--rate` limits all of them together to so many transactions a second.

    bench/family.py --large 200 [--rate N] [--server NAME] [--whet PATH]
    bench/family.py [--load NAME] [--server NAME] [--rounds N] [--seconds N] [--clients N] [--whet PATH] [--json FILE]

The server is the installed version of PostgreSQL, or another one by its name.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from postgres import NAMES, Load, PostgresError, Server  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
ANALYTIC = Path(__file__).resolve().parent / "analytic"
# pgbench's options for each load.
LOADS = {
    "select-only": ["-S", "-M", "prepared"],
    "tpc-b": ["-M", "prepared"],
    "reconnect": ["-S", "-C"],
    "analytic": ["-f", "analytic/queries.sql"],
}
# The windows of a round: the whet command before each, and its name.
ROUND = [("redo", "with"), ("undo", "without"), ("undo", "control")]


@dataclass
class Window:
    """One window: transactions, and CPU seconds of the server."""

    transactions: int
    user: float
    system: float

    def user_us(self) -> float:
        """Returns user CPU per transaction, in microseconds."""
        return self.user * 1e6 / self.transactions

    def cpu_us(self) -> float:
        """Returns CPU per transaction, in microseconds."""
        return (self.user + self.system) * 1e6 / self.transactions


def cpu(parent: int) -> tuple[float, float]:
    """Returns user and system CPU seconds of a process, its living children, and the children it waited for."""
    user = system = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        pid, above = int(stat.parent.name), int(fields[1])
        if parent in (pid, above):
            user += int(fields[11])
            system += int(fields[12])
        if pid == parent:
            user += int(fields[13])
            system += int(fields[14])
    return user / TICK, system / TICK


def next_report(load: Load, known: int) -> int:
    """Waits for a further report of pgbench. Returns how many there are."""
    limit = time.monotonic() + 10
    while (now := len(load.seconds())) <= known:
        if not load.is_running() or time.monotonic() > limit:
            raise PostgresError(f"pgbench reports nothing: {load.trouble()}")
        time.sleep(0.005)
    return now


def window(parent: int, load: Load, seconds: int) -> Window:
    """Observes some seconds, from one report of pgbench to another."""
    first = last = next_report(load, len(load.seconds()))
    before = cpu(parent)
    while last < first + seconds:
        last = next_report(load, last)
    after, reports = cpu(parent), load.seconds()
    done = sum(tps * (at - reports[i][0]) for i, (at, tps) in enumerate(reports[first:last], first - 1))
    return Window(round(done), after[0] - before[0], after[1] - before[1])


def interval(ratios: list[float], chance: random.Random) -> tuple[float, float]:
    """Returns the 95% bootstrap interval of the median."""
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[-101]


def peak(command: list[str]) -> tuple[float, int, dict]:
    """Runs a command of whet. Returns its seconds, its largest resident set in bytes and its answer."""
    begun = time.monotonic()
    with subprocess.Popen([*command, "--format", "json"], stdout=subprocess.PIPE, text=True) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise WhetError(f"{command} ended with {process.returncode}")
    return time.monotonic() - begun, usage.ru_maxrss * 1024, json.loads(text)


def large(whet: Whet, name: str, connections: int, rate: int | None) -> None:
    """Measures time and memory of commands on a family with many members."""
    with Server(name) as server:
        limit = ["--rate", str(rate)] if rate else []
        load = server.load("-S", "-c", str(connections), "-j", "2", "-T", "3600", *limit)
        while len(whet.run("status", "--family", server.pid)["members"]) < connections:
            time.sleep(0.5)
        for command in ("optimize", "undo", "redo", "undo"):
            seconds, bytes_, answer = peak([whet.path, command, "--family", str(server.pid)])
            members = answer.get("members", answer)
            print(
                f"{command}: {seconds:.1f} s, {bytes_ / 1e6:.0f} MB at most; {members['found']} members, at most "
                f"{members['stop_ms']['max']} ms stopped; members alone {members['seconds']} s"
            )
        if not load.is_running() or load.trouble():
            raise PostgresError(f"pgbench failed: {load.trouble()}")
        load.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", choices=LOADS, default="select-only")
    parser.add_argument("--server", choices=NAMES, default=NAMES[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=4, help="seconds of a window")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--whet", help="the binary; default: $WHET, else the release build")
    parser.add_argument("--large", type=int, metavar="N", help="measure time and memory with so many connections")
    parser.add_argument("--rate", type=int, metavar="N", help="with --large: transactions a second, at most")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    args = parser.parse_args()
    if args.rate and not args.large:
        parser.error("--rate belongs to --large")
    whet, chance, rounds = Whet(args.whet), random.Random(1), []
    try:
        if args.large:
            large(whet, args.server, args.large, args.rate)
            return 0
        with Server(args.server) as server:
            how = ["-c", str(args.clients), "-j", "1", "-T", "3600", "-P", "1", "--progress-timestamp"]
            if args.load == "analytic":
                # The user of the server may not be allowed to read this checkout.
                shutil.copytree(ANALYTIC, server.folder / "analytic")
                server.execute("analytic/tables.sql")
            load = server.load(*how, *LOADS[args.load])
            time.sleep(3)
            optimized = whet.run("optimize", "--family", server.pid, "--seconds", 3)
            for _ in range(args.rounds):
                windows = {}
                for command, name in chance.sample(ROUND, len(ROUND)):
                    whet.run(command, "--family", server.pid)
                    windows[name] = window(server.pid, load, args.seconds)
                rounds.append(windows)
    except (PostgresError, WhetError) as e:
        print(e, file=sys.stderr)
        return 1
    figures = {}
    for name, value in {
        "user CPU per transaction": Window.user_us,
        "CPU per transaction": Window.cpu_us,
        "transactions": lambda w: w.transactions,
    }.items():
        of = {side: [value(windows[side]) for windows in rounds] for _, side in ROUND}
        figures[name] = {side: median(values) for side, values in of.items()}
        for title, side in ("ratio", "with"), ("control_ratio", "control"):
            ratios = [a / b for a, b in zip(of[side], of["without"])]
            figures[name][title] = [median(ratios), *interval(ratios, chance)]
        gain, control = ("x{:.3f} ({:.3f}-{:.3f})".format(*figures[name][r]) for r in ("ratio", "control_ratio"))
        print(f"{name}: {median(of['without']):.1f} without, {median(of['with']):.1f} with, {gain}; A/A control {control}")
    members = optimized["members"]
    print(f"members: {members['installed']} got the clones, {len(members['left_alone'])} left alone, {members['seconds']} s")
    if args.json:
        args.json.write_text(json.dumps({"figures": figures, "rounds": len(rounds), "optimized": optimized}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
