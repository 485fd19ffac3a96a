#!/usr/bin/env python3
"""What llvm-bolt gains on a server, measured as bench/run.py measures what whet gains.

Two builds of Debian's MariaDB run side by side, each with its own load, of which one stands still (SIGSTOP) while the
other's window is taken; pairs of windows in random order. For whet's side of the comparison give the plain build to
whet: `--whet` optimizes it live and measures that as well.

    bench/bolt.py --plain MARIADBD --bolted MARIADBD [--whet PATH] [--pairs N] [--threads N] [--seed N] [LOAD...]

llvm-bolt needs a server that was linked with relocations, and a profile of it:

    LDFLAGS=-Wl,--emit-relocs cmake ... && make mariadbd                  from Debian's source package
    llvm-bolt-16 mariadbd -o counting -instrument --instrumentation-file=FDATA --instrumentation-sleep-time=1
    (run `counting` under the loads)
    llvm-bolt-16 mariadbd -o bolted -data=FDATA -reorder-blocks=ext-tsp -reorder-functions=hfsort+ -split-functions
        -split-all-cold -split-eh -icf=1 -plt=hot -dyno-stats
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from measure import Gauge, MeasureError, Window, evaluate, measure  # noqa: E402
from mysql_wire import Connection, MysqlError  # noqa: E402
from run import LOADS, READS, ROWS, TABLES, WARM_UP, cell  # noqa: E402
from server import Load, Server, ServerError, exit_on_signals  # noqa: E402
from servers import FetchError  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

WINDOW, SETTLE = 0.2, 0.03


class Side:
    """A server under its load, which runs only while a window is taken."""

    def __init__(self, stack: ExitStack, program: Path, load_name: str, threads: int):
        durable = load_name not in READS
        self.server = stack.enter_context(Server(durable=durable, program=str(program)))
        self.server.prepare(TABLES, ROWS)
        self.load = stack.enter_context(Load(self.server.socket, load_name, threads, None, TABLES, ROWS))
        connection = stack.enter_context(Connection(self.server.socket))
        self.gauge = Gauge(self.server.pid, connection)
        # Before the load is ended, whatever happens: a stopped process does not hear that it shall end.
        stack.callback(self.go)

    def go(self) -> None:
        """Lets the load run."""
        self._signal(signal.SIGCONT)

    def halt(self) -> None:
        """Stops the load."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        if self.load.running():
            os.kill(self.load.pid, number)

    def window(self, pair: int, side: str) -> Window:
        """One window with the load, which stands still before and after."""
        self.go()
        time.sleep(SETTLE)
        window = self.gauge.window(pair, side, WINDOW)
        self.halt()
        return window

    def finish(self) -> None:
        """Ends the load and sees that it was well."""
        self.go()
        outcome = self.load.finish()
        failed = max(0, outcome.ignored_errors - self.server.deadlocks())
        if outcome.exit_code != 0 or failed or outcome.reconnects or outcome.complaints:
            raise MeasureError(f"a query failed: {outcome}")


def compare(load_name: str, args: argparse.Namespace) -> dict:
    """One load: the bolted server against the plain one, then whet on the plain one."""
    rng = random.Random(args.seed)
    with ExitStack() as stack:
        sides = {}
        for name, program in (("without", args.plain), ("with", args.bolted)):
            sides[name] = Side(stack, program, load_name, args.threads)
            time.sleep(WARM_UP)
            sides[name].halt()
        windows = []
        for pair in range(args.pairs):
            order = list(sides)
            rng.shuffle(order)
            windows += [sides[name].window(pair, name) for name in order]
        result = {"load": load_name, "threads": args.threads, "bolt": evaluate(windows, rng)}
        sides["with"].finish()
        plain = sides["without"]
        plain.go()
        if args.whet:
            result["optimize"] = args.whet.run("optimize", plain.server.pid)
            result["whet"] = measure(
                plain.server.pid, plain.server.socket, pairs=args.pairs, whet=args.whet, seed=args.seed
            )
        plain.finish()
    return result


def row(tool: str, r: dict) -> str:
    """One tool's line of the table."""
    g = r[tool]
    return (
        f"| {r['load']} | {tool} | {cell(g['cpu_per_query'])} | x{g['user_cpu_per_query'] or 0:.2f} "
        f"| {cell(g['throughput'])} |"
    )


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plain", type=Path, required=True)
    p.add_argument("--bolted", type=Path, required=True)
    p.add_argument("--whet", type=Whet)
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--threads", type=int, default=4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "bolt.json")
    p.add_argument("loads", nargs="*", default=LOADS)
    args = p.parse_args()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        for load_name in args.loads:
            results.append(compare(load_name, args))
            # After each, so that a later failure loses nothing.
            args.json.write_text(json.dumps(results, indent=1))
            print(f"{load_name}: done", file=sys.stderr, flush=True)
    except (FetchError, MeasureError, MysqlError, ServerError, WhetError, OSError) as e:
        print(f"bolt: {e}", file=sys.stderr)
        return 1
    print("| load | tool | CPU per query (95% interval) | user CPU, pooled | throughput |")
    print("|---|---|---|---|---|")
    for r in results:
        for tool in ("bolt", "whet"):
            if tool in r:
                print(row(tool, r))
    return 0


if __name__ == "__main__":
    sys.exit(main())
