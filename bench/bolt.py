#!/usr/bin/env python3
"""What llvm-bolt gains on a server, beside what whet gains on it.

Two builds of Debian's MariaDB (bench/bolt_server.py makes them) run side by side, each with its own load, of which one
stands still (SIGSTOP) while the other's window is taken; pairs of windows in random order. First the plain one runs
against a second plain one, which is the noise of comparing two servers: each has memory of its own, and each window begins with
caches that the other has filled. Then against the one that llvm-bolt made by a profile of all loads. Then whet optimizes
the plain one live, and its windows with and without are taken as in bench/run.py; once more without huge pages, as
llvm-bolt's code is in such only where the kernel has them for files (`huge pages` in the table tells).

    bench/bolt.py FOLDER [--whet PATH] [--pairs N] [--threads N] [--seed N] [--json FILE] [LOAD...]

FOLDER holds the servers `plain` and `bolted`.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from loaded import LOADS, READS, ROWS, TABLES, WARM_UP  # noqa: E402
from measure import Gauge, MeasureError, Window, evaluate, machine, measure  # noqa: E402
from memory import huge_code  # noqa: E402
from mysql_wire import Connection, MysqlError  # noqa: E402
from run import cell, table  # noqa: E402
from server import Load, Server, ServerError, exit_on_signals, finish  # noqa: E402
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
        finish(self.load, self.server)


def side_by_side(load_name: str, programs: dict[str, Path], args: argparse.Namespace, rng: random.Random) -> dict:
    """Two servers in turn."""
    with ExitStack() as stack:
        sides = {}
        for name, program in programs.items():
            sides[name] = Side(stack, program, load_name, args.threads)
            time.sleep(WARM_UP)
            sides[name].halt()
        windows = []
        for pair in range(args.pairs):
            order = list(sides)
            rng.shuffle(order)
            windows += [sides[name].window(pair, name) for name in order]
        huge = huge_code(sides["with"].server.pid)
        for side in sides.values():
            side.finish()
    return {**evaluate(windows, rng), "huge_code_bytes": huge, "windows": [asdict(w) for w in windows]}


def by_whet(load_name: str, args: argparse.Namespace) -> dict:
    """The plain server with whet's code and without; then the same with clones in small pages."""

    def gained(*words: object) -> dict:
        before = huge_code(pid)
        optimized = args.whet.run("optimize", pid, *words)
        huge = huge_code(pid) - before
        gain = measure(pid, plain.server.socket, pairs=args.pairs, whet=args.whet, seed=args.seed)
        return {**gain, "huge_code_bytes": huge, "optimize": optimized}

    with ExitStack() as stack:
        plain = Side(stack, args.folder / "plain", load_name, args.threads)
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whet-bench-"))) / "profile"
        time.sleep(WARM_UP)
        pid = plain.server.pid
        huge = gained()
        args.whet.run("profile", "export", pid, "-o", profile)
        small = gained("--profile", profile, "--without", "huge-pages")
        plain.finish()
    return {"whet": huge, "whet, small pages": small}


def compare(load_name: str, args: argparse.Namespace) -> dict:
    """One load."""
    rng = random.Random(args.seed)
    plain, bolted = args.folder / "plain", args.folder / "bolted"
    return {
        "load": load_name,
        "threads": args.threads,
        "machine": machine(),
        "tools": {
            "nothing": side_by_side(load_name, {"without": plain, "with": plain}, args, rng),
            "llvm-bolt": side_by_side(load_name, {"without": plain, "with": bolted}, args, rng),
            **by_whet(load_name, args),
        },
    }


def row(load_name: str, tool: str, g: dict) -> list[str]:
    """What one tool gains."""
    user = f"x{g['user_cpu_per_query'] or 0:.2f}"
    huge = f"{g['huge_code_bytes'] / (1 << 20):.0f} MiB"
    return [load_name, tool, cell(g["cpu_per_query"]), user, cell(g["throughput"]), huge]


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--threads", type=int, default=4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "bolt.json")
    p.add_argument("loads", nargs="*", default=LOADS)
    args = p.parse_intermixed_args()
    args.folder = args.folder.absolute()
    args.whet = args.whet or Whet()
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
    head = ["load", "tool", "CPU per query (95% interval)", "user CPU, pooled", "throughput", "huge pages"]
    print(table(head, [row(r["load"], tool, g) for r in results for tool, g in r["tools"].items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
