#!/usr/bin/env python3
"""Compares what offline optimizers gain on a server with what whet gains on it: llvm-bolt, and gcc with a
profile.

Two builds of Debian's MariaDB (bench/bolt_server.py makes them) run side by side, each with its own load. One
load is stopped (SIGSTOP) while the window of the other is measured. The servers have one CPU, their clients
another. Pairs of windows come in random order. There are several couples of servers, as each server has
memory of its own; intervals resample couples first, then pairs. First the plain server runs against a second
plain server, which gives the noise of comparing two servers; then against one that whet has optimized live and undone
again, which must cost the same; then against one that whet has optimized. Each offline build then runs against the
plain server, and against a plain server that whet has optimized: more than 1 is what whet gains over the offline
optimizer.

Then the plain server runs alone, on all CPUs, with whet's clones and without, as in bench/run.py. It runs
once more without huge pages, as llvm-bolt's code is in huge pages only where the kernel has them for files
(see `huge pages` in the table). Each offline build runs alone in the same ways: both layouts are in one process, so
differences between servers do not count.

    bench/bolt.py FOLDER [--builds NAME,...] [--only COMPARISON]... [--whet PATH] [--pairs N] [--seed N]
                  [--json FILE] [LOAD...]

FOLDER has the server `plain`, which may be any MariaDB, and the offline builds. With `--builds ''` there are none.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from bolt_server import BUILDS, builds  # noqa: E402
from loaded import LOADS, READS, ROWS, TABLES, WARM_UP, pin  # noqa: E402
from measure import Gauge, MeasureError, Window, evaluate, machine, measure  # noqa: E402
from memory import huge_code  # noqa: E402
from mysql_wire import Connection, MysqlError  # noqa: E402
from run import cell, table  # noqa: E402
from server import Load, Server, ServerError, exit_on_signals, finish  # noqa: E402
from servers import FetchError  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

WINDOW, SETTLE = 0.2, 0.03
COUPLES, THREADS = 8, 4
# Seconds that `whet optimize` takes, about; the load of the other side runs as long.
OPTIMIZE = 12.0


class Side:
    """A server under its load. After the warm-up the load runs only while a window is measured."""

    def __init__(self, stack: ExitStack, program: Path, load_name: str):
        self.stack, self.load_name = stack, load_name
        self.server = stack.enter_context(Server(durable=load_name not in READS, program=str(program)))
        self.server.prepare(TABLES, ROWS)
        self.gauge = Gauge(self.server.pid, stack.enter_context(Connection(self.server.socket)))

    def warm_up(self) -> None:
        """Starts the load and gives it time to warm up."""
        load = Load(self.server.socket, self.load_name, THREADS, None, TABLES, ROWS)
        self.load = self.stack.enter_context(load)
        # This is registered now, so that it comes before the wait for the load: a stopped load never ends by
        # itself.
        self.stack.callback(self.go)
        time.sleep(WARM_UP)

    def go(self) -> None:
        """Continues the load."""
        self._signal(signal.SIGCONT)

    def halt(self) -> None:
        """Stops the load."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self.load.running():
            os.kill(self.load.pid, number)

    def window(self, pair: int, side: str) -> Window:
        """Measures a window with the load, which is stopped before and after."""
        self.go()
        time.sleep(SETTLE)
        window = self.gauge.window(pair, side, WINDOW)
        self.halt()
        return window

    def finish(self) -> None:
        """Ends the load. Raises ServerError if a query failed."""
        self.go()
        finish(self.load, self.server)


@dataclass
class Live:
    """The state to which whet brings the server `with` of each couple: `optimized`, or optimized and `undone`."""

    whet: Whet
    state: str

    def bring(self, pid: int) -> None:
        """Brings a server to that state."""
        self.whet.run("optimize", pid)
        if self.state == "undone":
            self.whet.run("undo", pid)


def couple(
    load_name: str, programs: dict[str, Path], pairs: range, group: int, live: Live | None, rng: random.Random
) -> tuple[list[Window], dict[str, int]]:
    """Returns the windows of two servers in turn, and the bytes of code in huge pages of each."""
    with ExitStack() as stack:
        # Each side is first as often as second.
        order = list(programs)[:: -1 if group % 2 else 1]
        sides = {name: Side(stack, programs[name], load_name) for name in order}
        for name, side in sides.items():
            side.warm_up()
            pin(side.load.pid, [side.server.pid])
            if live and name == "with":
                live.bring(side.server.pid)
            elif live:
                time.sleep(OPTIMIZE)
            side.halt()
        windows = []
        for pair in pairs:
            rng.shuffle(order)
            windows += [replace(sides[name].window(pair, name), group=group) for name in order]
        huge = {name: huge_code(side.server.pid) for name, side in sides.items()}
        if live and (state := live.whet.state(sides["with"].server.pid)) != live.state:
            raise WhetError(f"the server is {state} after its windows")
        for side in sides.values():
            side.finish()
    return windows, huge


def side_by_side(load_name: str, programs: dict[str, Path], args: argparse.Namespace, live: Live | None = None) -> dict:
    """Measures couples of servers."""
    windows, huge, rng = [], [], random.Random(args.seed)
    for group in range(COUPLES):
        pairs = range(args.pairs * group // COUPLES, args.pairs * (group + 1) // COUPLES)
        more, pages = couple(load_name, programs, pairs, group, live, rng)
        windows += more
        huge.append(pages)
    gain = evaluate(windows, rng)
    least = min(pages["with"] for pages in huge)
    return {**gain, "huge_code_bytes": least, "huge_code_of_each": huge, "windows": [asdict(w) for w in windows]}


def in_one(load_name: str, name: str, program: Path, args: argparse.Namespace) -> dict[str, dict]:
    """Measures a server with whet's clones and without, then the same with clones in small pages."""
    with ExitStack() as stack:
        side = Side(stack, program, load_name)
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whet-bench-"))) / "profile"
        side.warm_up()
        pid = side.server.pid

        def gained(*words: object) -> dict:
            before = huge_code(pid)
            optimized = args.whet.run("optimize", pid, *words)
            huge = huge_code(pid) - before
            gain = measure(pid, side.server.socket, pairs=args.pairs, whet=args.whet, seed=args.seed)
            return {**gain, "huge_code_bytes": huge, "optimize": optimized}

        huge = gained()
        args.whet.run("profile", "export", pid, "-o", profile)
        small = gained("--profile", profile, "--without", "huge-pages")
        side.finish()
    return {name: huge, f"{name}, small pages": small}


def comparisons(args: argparse.Namespace) -> dict[str, Callable[[str], dict[str, dict]]]:
    """Returns the comparisons by name. Each takes a load, and returns name and figures of its rows."""
    found: dict[str, Callable[[str], dict[str, dict]]] = {}

    def turns(name: str, without: str, with_: str, live: Live | None = None) -> None:
        programs = {"without": args.folder / without, "with": args.folder / with_}
        found[name] = lambda load_name: {name: side_by_side(load_name, programs, args, live)}

    def alone(name: str, build: str) -> None:
        found[name] = lambda load_name: in_one(load_name, name, args.folder / build, args)

    turns("nothing", "plain", "plain")
    turns("whet, undone", "plain", "plain", Live(args.whet, "undone"))
    optimized = Live(args.whet, "optimized")
    turns("whet", "plain", "plain", optimized)
    for build in args.builds:
        turns(build, "plain", build)
        turns(f"whet over {build}", build, "plain", optimized)
    for build in ["plain", *args.builds]:
        alone(f"whet in one server, {build}", build)
    return found


def row(load_name: str, tool: str, g: dict) -> list[str]:
    """Returns the row of one comparison."""
    huge = f"{g['huge_code_bytes'] / (1 << 20):.0f} MiB"
    return [load_name, tool, cell(g["cpu_per_query"]), cell(g["user_cpu_per_query"]), cell(g["throughput"]), huge]


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--builds", type=builds, default=["bolted"], metavar="NAME,...", help=f"of {', '.join(BUILDS)}")
    p.add_argument("--only", action="append", metavar="COMPARISON", help="a name in the column `tool` (default: all)")
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "bolt.json")
    p.add_argument("loads", nargs="*", default=LOADS)
    args = p.parse_intermixed_args()
    if args.pairs < 2 * COUPLES:
        p.error(f"at least {2 * COUPLES} pairs: two of each couple of servers")
    if len(os.sched_getaffinity(0)) < 2:
        p.error("needs two CPUs")
    args.folder = args.folder.absolute()
    if missing := [name for name in ["plain", *args.builds] if not (args.folder / name).is_file()]:
        p.error(f"{args.folder} has no {missing[0]}; bench/bolt_server.py builds it")
    args.whet = args.whet or Whet()
    known = comparisons(args)
    if unknown := [name for name in args.only or [] if name not in known]:
        p.error(f"no comparison is named {unknown[0]!r}; there are: {'; '.join(known)}")
    args.json.parent.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        for load_name in args.loads:
            tools: dict[str, dict] = {}
            results.append({"load": load_name, "threads": THREADS, "machine": machine(), "tools": tools})
            for name in args.only or known:
                tools |= known[name](load_name)
                # Written after each comparison, so that a later failure loses nothing.
                args.json.write_text(json.dumps(results, indent=1))
                print(f"{load_name}, {name}: done", file=sys.stderr, flush=True)
    except (FetchError, MeasureError, MysqlError, ServerError, WhetError, OSError) as e:
        print(f"bolt: {e}", file=sys.stderr)
        return 1
    head = ["load", "tool", "CPU per query (95% interval)", "user CPU per query", "throughput", "huge pages"]
    print(table(head, [row(r["load"], tool, g) for r in results for tool, g in r["tools"].items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
