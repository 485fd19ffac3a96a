#!/usr/bin/env python3
"""Measures what huge pages for data gain on PostgreSQL, both servers with whet's clones for code.

Two servers run side by side, each with a load of its own, in turn as in bench/bolt.py. The shared buffers of one are in
huge pages, those of the other in small ones. Their tables fit into the shared buffers, and keys are uniform. More than 1
is what huge pages gain.

How the shared buffers come into huge pages: by `setting`, from the kernel's reserve when the server starts
(`huge_pages`), or `live`, in the running server by `whet huge-pages`. Either takes root and a change of the host, which
is taken back at the end: of `vm.nr_hugepages`, or of the kernel's `shmem_enabled` for the server's start, without which
its mapping does not begin at a multiple of 2 MiB.

    bench/huge_data.py [--how setting|live] [--gigabytes N] [--clients N] [--couples N] [--pairs N] [--seed N] [--whet PATH] [--json FILE]
"""

import argparse
import bisect
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from loaded import command_line, pin  # noqa: E402
from measure import MeasureError, Window, cpu_clock, cpu_ticks, evaluate  # noqa: E402
from postgres import PostgresError, Server  # noqa: E402
from run import cell, table  # noqa: E402
from server import exit_on_signals  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402
from whet_daemon import children  # noqa: E402

WINDOW, SETTLE, WARM_UP = 0.3, 0.03, 5.0
# Lines of smaps about huge pages of shared memory: moved by the kernel, and from its reserve.
KINDS = ("ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:")
RESERVE = Path("/proc/sys/vm/nr_hugepages")
SHARED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def in_huge_pages(pid: int) -> int:
    """Returns how many bytes of shared memory a process has in huge pages."""
    lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(KINDS))


@contextmanager
def set_to(file: Path, value: str) -> Iterator[None]:
    """Changes a setting of the kernel for a while."""
    text = file.read_text()
    # Where there is a choice, what is chosen is in brackets.
    before = text.partition("[")[2].partition("]")[0] or text.strip()
    file.write_text(value)
    try:
        yield
    finally:
        file.write_text(before)


@dataclass
class Reading:
    """Time, CPU time and its parts in user mode and in the kernel, all in seconds."""

    at: float
    cpu: float
    user: float
    system: float


class Side:
    """A server under its load. The load runs only while a window is measured."""

    def __init__(self, stack: ExitStack, gigabytes: int, clients: int, huge_pages: str):
        settings = f"shared_buffers = {gigabytes}GB\nhuge_pages = {huge_pages}\nmax_wal_size = 20GB\n"
        # 62 of pgbench's units take one gigabyte.
        self.server = stack.enter_context(Server(scale=62 * gigabytes, settings=settings))
        self.server.ask("create extension pg_prewarm")
        self.server.ask("select sum(pg_prewarm(oid)) from pg_class where relname like 'pgbench_accounts%'")
        log = ["-l", f"--log-prefix={self.server.folder}/transactions"]
        self.load = self.server.load("-S", "-M", "prepared", "-c", str(clients), "-j", "1", "-T", "36000", *log)
        # Registered now, so that it comes before the wait for the load: a stopped load never ends by itself.
        stack.callback(self.go)
        time.sleep(WARM_UP)
        self.backends = [pid for pid in children(self.server.pid) if "[local]" in command_line(pid)]
        pin(self.load.process.pid, self.backends)
        self.windows: list[tuple[int, Reading, Reading]] = []

    def go(self) -> None:
        """Continues the load."""
        if self.load.is_running():
            self.load.process.send_signal(signal.SIGCONT)

    def halt(self) -> None:
        """Stops the load."""
        self.load.process.send_signal(signal.SIGSTOP)

    def read(self) -> Reading:
        """Reads the clocks of all backends."""
        before = time.time()
        ticks = [cpu_ticks(pid) for pid in self.backends]
        cpu = sum(map(cpu_clock, self.backends))
        return Reading((before + time.time()) / 2, cpu, sum(t[0] for t in ticks), sum(t[1] for t in ticks))

    def window(self, pair: int) -> None:
        """Measures a window."""
        self.go()
        time.sleep(SETTLE)
        first = self.read()
        time.sleep(WINDOW)
        self.windows.append((pair, first, self.read()))
        self.halt()

    def finish(self, side: str, group: int) -> list[Window]:
        """Ends the load. Returns its windows with the transactions of each, by pgbench's log. Raises PostgresError if a
        transaction failed."""
        self.go()
        # pgbench writes its log in blocks; it is killed with the last one unwritten.
        time.sleep(0.5)
        if not self.load.is_running() or self.load.trouble():
            raise PostgresError(f"pgbench failed: {self.load.trouble()}")
        self.load.end()
        # The fifth and sixth words of a line: the second and microsecond of a transaction's end.
        lines = [line.split() for file in self.server.folder.glob("transactions*") for line in file.read_text().splitlines()]
        ends = sorted(int(words[4]) + int(words[5]) / 1e6 for words in lines if len(words) == 6)

        def window(pair: int, a: Reading, b: Reading) -> Window:
            done = bisect.bisect(ends, b.at) - bisect.bisect(ends, a.at)
            return Window(pair, side, done, b.at - a.at, b.cpu - a.cpu, b.user - a.user, b.system - a.system, group)

        return [window(*each) for each in self.windows]


def couple(args: argparse.Namespace, pairs: range, group: int, rng: random.Random) -> list[Window]:
    """Returns the windows of two servers."""
    with ExitStack() as stack:
        order = ["without", "with"][:: -1 if group % 2 else 1]
        sides = {}
        for name in order:
            by_setting = name == "with" and args.how == "setting"
            side = sides[name] = Side(stack, args.gigabytes, args.clients, "on" if by_setting else "off")
            args.whet.run("optimize", "--family", side.server.pid, "--seconds", 3)
            if name == "with" and args.how == "live":
                args.whet.run("huge-pages", side.server.pid)
            # Each backend meets the pages that it reads.
            time.sleep(WARM_UP)
            side.halt()
        huge = {name: in_huge_pages(side.backends[-1]) >> 20 for name, side in sides.items()}
        print(f"couple {group + 1}: {huge['with']} MiB in huge pages, {huge['without']} MiB", file=sys.stderr, flush=True)
        if huge["without"] or not huge["with"]:
            raise MeasureError("the servers do not differ as they should")
        for pair in pairs:
            rng.shuffle(order)
            for name in order:
                sides[name].window(pair)
        return [window for name, side in sides.items() for window in side.finish(name, group)]


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--how", choices=["setting", "live"], default="live")
    p.add_argument("--gigabytes", type=int, default=4, help="of shared buffers, and a little less of tables")
    p.add_argument("--clients", type=int, default=4, help="of each server")
    p.add_argument("--couples", type=int, default=4)
    p.add_argument("--pairs", type=int, default=50, help="of windows, on each couple")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "huge_data.json")
    args = p.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        p.error("needs two CPUs")
    args.whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    # A tenth more than the buffers: PostgreSQL's other shared memory.
    reserve = str(args.gigabytes * 512 * 11 // 10)
    host = set_to(RESERVE, reserve) if args.how == "setting" else set_to(SHARED, "advise")
    rng, windows = random.Random(args.seed), []
    try:
        with host:
            for group in range(args.couples):
                windows += couple(args, range(args.pairs * group, args.pairs * (group + 1)), group, rng)
        gain = evaluate(windows, rng)
    except (MeasureError, PostgresError, WhetError, OSError) as e:
        print(f"huge_data: {e}", file=sys.stderr)
        return 1
    args.json.write_text(json.dumps({"how": args.how, **gain, "windows": [asdict(w) for w in windows]}, indent=1))
    head = ["huge pages", "CPU per transaction (95% interval)", "user CPU per transaction", "throughput"]
    print(table(head, [[args.how, *(cell(gain[k]) for k in ("cpu_per_query", "user_cpu_per_query", "throughput"))]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
