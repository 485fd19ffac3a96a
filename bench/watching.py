#!/usr/bin/env python3
"""Measures what the daemon costs with its default settings: CPU time, that of its workers included. The time
that the kernel spends in a target for sampling is not included.

First the daemon watches: the host has many processes, and one of them is on the daemon's list and idle. Then
this process, a MariaDB, gets a load, and the daemon optimizes and judges it. After that nothing changes, and
the daemon's CPU time is compared with the server's.

    bench/watching.py [--processes N] [--seconds N] [--whet PATH] [--json FILE]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from measure import cpu_clock  # noqa: E402
from mysql_wire import MysqlError  # noqa: E402
from server import Load, Server, ServerError, exit_on_signals, finish  # noqa: E402
from servers import FetchError  # noqa: E402
from servers.room import die_with_parent  # noqa: E402
from whet_cli import WhetError  # noqa: E402
from whet_daemon import Daemon, own_mariadb  # noqa: E402

TABLES, ROWS = 4, 50_000
LOAD = "oltp_read_only"
# Seconds for the wait until the process is old enough, the first look, the rebuild, and the comparison that
# judges it.
UNTIL_JUDGED = 400


def used(daemon: Daemon, pid: int, seconds: float) -> dict:
    """Returns the CPU seconds of the daemon and of a process over some seconds."""
    before, began = (daemon.cpu_seconds(), cpu_clock(pid)), time.monotonic()
    metrics = [daemon.metric(f"whet_{name}_total") for name in ("looks", "looking_seconds")]
    time.sleep(seconds)
    daemon_cpu, target_cpu = daemon.cpu_seconds() - before[0], cpu_clock(pid) - before[1]
    looks, looking = (
        daemon.metric(f"whet_{name}_total") - was for name, was in zip(("looks", "looking_seconds"), metrics)
    )
    return {"seconds": time.monotonic() - began, "daemon": daemon_cpu, "target": target_cpu, "looks": looks, "looking": looking}


def target(daemon: Daemon, pid: int) -> dict:
    """Returns what the daemon reports of a process."""
    return next((t for t in daemon.targets() if t["pid"] == pid), {})


def wait_until_judged(daemon: Daemon, pid: int) -> None:
    """Waits until the daemon has compared, and found a gain."""
    deadline = time.monotonic() + UNTIL_JUDGED
    while (said := target(daemon, pid)).get("state") != "optimized" or "factor" not in said:
        if time.monotonic() > deadline:
            raise WhetError(f"not found to pay in {UNTIL_JUDGED} s: {said}")
        time.sleep(1)


def watch(args: argparse.Namespace, folder: Path) -> dict:
    """Measures both phases."""
    program = own_mariadb(folder, "whet-watched-mariadbd")
    with ExitStack() as stack:
        for _ in range(args.processes):
            sleeper = subprocess.Popen(["sleep", "infinity"], preexec_fn=die_with_parent)
            stack.callback(sleeper.wait)
            stack.callback(sleeper.kill)
        server = stack.enter_context(Server(program=str(program)))
        server.prepare(TABLES, ROWS)
        daemon = stack.enter_context(Daemon(folder, [program]))
        time.sleep(5)
        watching = used(daemon, server.pid, args.seconds)
        with Load(server.socket, LOAD, 4, None, TABLES, ROWS) as load:
            wait_until_judged(daemon, server.pid)
            steady = used(daemon, server.pid, args.seconds)
            rebuilds, said = daemon.metric("whet_rebuilds_total"), target(daemon, server.pid)
            finish(load, server)
        daemon.whet.run("undo", server.pid)
    if rebuilds != 1 or said.get("state") != "optimized":
        raise WhetError(f"it did not stay as it was: {rebuilds:.0f} rebuilds, {said}")
    return {"processes": args.processes, "watching": watching, "steady": steady}


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--processes", type=int, default=200, help="that are there besides")
    p.add_argument("--seconds", type=float, default=600, help="for each figure; a layout is compared with its load once a minute")
    p.add_argument("--whet", help="the binary")
    p.add_argument("--json", type=Path, default=Path(__file__).resolve().parent / "out" / "watching.json")
    args = p.parse_args()
    if args.whet:
        os.environ["WHET"] = args.whet
    args.json.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix="whet-watching-") as folder:
            # The server's user must be able to reach the program.
            Path(folder).chmod(0o755)
            result = watch(args, Path(folder))
    except (FetchError, MysqlError, ServerError, WhetError, OSError) as e:
        print(f"watching: {e}", file=sys.stderr)
        return 1
    args.json.write_text(json.dumps(result, indent=1))
    w, s = result["watching"], result["steady"]
    print(f"watching {args.processes} processes and one on the list: {w['daemon'] / w['seconds']:.2%} of a CPU")
    print(f"a look every {w['seconds'] / max(w['looks'], 1):.1f} s, at {w['looking'] / w['seconds']:.3%} of a CPU")
    print(f"a target that stays as it is: {s['daemon'] / s['target']:.2%} of its CPU time, {s['daemon'] / s['seconds']:.2%} of a CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
