#!/usr/bin/env python3
"""PostgreSQL and nginx as families: a private server is optimized under load with `--family`, undone and redone
many times, and verified. No transaction and no request may fail, and the server's log must not show an error.

Each load of PostgreSQL gets a server of its own: select-only, TPC-B, and select-only with a new connection for
each transaction. nginx has four workers, which a reload replaces; `--load` chooses other web servers as well. At
last a postmaster is killed while its family is profiled: the command ends in order.

The last line is "N passed, N failed".
"""

import argparse
import re
import subprocess
import sys
import time

from postgres import PostgresError, Server
from webservers import KINDS, Clients, Web, WebError
from whet_cli import Whet, WhetError

LOADS = {"select": ["-S"], "tpcb": [], "reconnect": ["-S", "-C"]}
GONE = 10


class Checks:
    """Counts checks that hold and checks that fail, and prints each at once."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def check(self, holds: bool, what: str, evidence: object = "") -> None:
        """Prints one check. The evidence is shown if the check fails."""
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)
        print(f"{'ok    ' if holds else 'FAILED'} {what}" + (f": {evidence}" if evidence and not holds else ""), flush=True)


def toggled(whet: Whet, checks: Checks, name: str, words: list[str], toggles: int) -> None:
    """Optimizes a family under a load, undoes and redoes it, and checks all processes each time."""
    with Server() as server:
        load = server.load("-c", "4", "-j", "1", "-T", "600", *words)
        time.sleep(1)
        answer = whet.run("optimize", "--family", server.pid, "--seconds", 3)
        members = answer["members"]
        checks.check(members["left_alone"] == [], f"{name}: all members got the clones", members["left_alone"])
        for _ in range(toggles):
            for command in ("undo", "redo"):
                whet.run(command, "--family", server.pid)
                verified = whet.run("verify", "--family", server.pid)
                live = verified["live_redirects"]
                fits = (live == 0) == (command == "undo")
                checks.check(verified["identical"] and fits, f"{name}: {command}, verified", verified)
                states = whet.run("status", "--family", server.pid)["states"]
                wanted = {"undo": "undone", "redo": "optimized"}[command]
                checks.check(set(states) == {wanted}, f"{name}: all members are {wanted}", states)
        checks.check(load.is_running() and not load.trouble(), f"{name}: no client failed", load.trouble())
        load.end()
        whet.run("undo", "--family", server.pid)
        quick = server.load("-c", "4", "-j", "1", "-T", "2", *words).wait()
        checks.check(quick.failed == 0 and quick.transactions > 0, f"{name}: no transaction failed", quick)
        bad = re.findall(r".*(?:ERROR|FATAL|PANIC|terminated by signal).*", server.log().read_text())
        # The end of pgbench above may cut a connection, and the test checks early whether the server answers.
        bad = [line for line in bad if "connection" not in line and "is starting up" not in line]
        checks.check(not bad, f"{name}: nothing in the server's log", bad[:3])


def web(whet: Whet, checks: Checks, name: str, toggles: int) -> None:
    """Optimizes a web server under requests, undoes and redoes it, and replaces its workers."""
    with Web(name) as server:
        clients = Clients(server)
        time.sleep(1)
        workers = len(server.workers())
        for _ in range(toggles):
            members = whet.run("optimize", "--family", server.pid, "--seconds", 2)["members"]
            fits = members["left_alone"] == [] and members["in_force"] + members["installed"] >= workers
            checks.check(fits, f"{name}: all workers have the clones", members)
            for command, state in [("undo", "undone"), ("redo", "optimized")]:
                whet.run(command, "--family", server.pid)
                if server.kind.keeps:
                    server.reload()
                states = whet.run("status", "--family", server.pid)["states"]
                checks.check(states == {state: workers}, f"{name}: {command}, then all workers are {state}", states)
                verified = whet.run("verify", "--family", server.pid)
                checks.check(verified["identical"], f"{name}: {command}, verified", verified)
            if not server.kind.keeps:
                server.reload()
                states = whet.run("status", "--family", server.pid)["states"]
                checks.check(states == {"untouched": workers}, f"{name}: executed anew, a new family", states)
        whet.try_run("undo", "--family", server.pid)
        clients.end()
        what = f"{name}: none of {clients.done} requests failed"
        checks.check(clients.done > 0 and not clients.failures, what, clients.failures[:3])
        checks.check(not server.trouble(), f"{name}: nothing in the server's log", server.trouble()[:3])


def killed(whet: Whet, checks: Checks) -> None:
    """Kills a postmaster while its family is profiled."""
    with Server() as server:
        server.load("-c", "4", "-j", "1", "-T", "600", "-S")
        words = [whet.path, "optimize", "--family", str(server.pid), "--seconds", "30"]
        command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(3)
        server.kill()
        _, errors = command.communicate(timeout=60)
        checks.check(command.returncode == GONE, "the end of the postmaster ends the command", errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toggles", type=int, default=3, help="how often each family is undone and redone")
    parser.add_argument("--load", choices=[*LOADS, *KINDS], action="append", help="only this load")
    args = parser.parse_args()
    whet, checks = Whet(), Checks()
    try:
        for name in args.load or [*LOADS, "nginx"]:
            if name in KINDS:
                web(whet, checks, name, args.toggles)
            else:
                toggled(whet, checks, name, LOADS[name], args.toggles)
        if not args.load:
            killed(whet, checks)
    except (PostgresError, WebError, WhetError) as e:
        checks.check(False, "the test", e)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
