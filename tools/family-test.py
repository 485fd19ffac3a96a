#!/usr/bin/env python3
"""Servers of many processes as families: each is private, and is optimized under its own load with `--family`,
undone and redone many times, and verified. No transaction, request or answer may fail, and the server's log must
not show an error.

Each load of PostgreSQL gets a server of its own: select-only, TPC-B, and select-only with a new connection for
each transaction. The web servers have four workers, which a reload replaces. redis saves its data in forked
children all of the time. At last a postmaster is killed while its family is profiled: the command ends in order.

`--long` takes all web servers, kills the parent of each, and lets a daemon take those whose reload makes a new
family. A server that is not installed, or cannot be fetched, is skipped. `--server` chooses another PostgreSQL.

The last line is "N passed, N failed".
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from postgres import NAMES, PostgresError, PostgresMissing, Server
from redis_server import Redis, SavingClients
from webservers import KINDS, Clients, Missing, Web, WebError
from whet_cli import Whet, WhetError
from whet_daemon import Daemon, state

LOADS = {"select": ["-S"], "tpcb": [], "reconnect": ["-S", "-C"]}
# The servers of the short form, and those of them that are optimized once there.
SHORT = ["nginx", "haproxy", "redis"]
ONE_ROUND = ["haproxy", "redis"]
GONE = 10
# Settings for which much happens in a short time.
QUICK = """
[take]
cpu_percent = 5.0
min_age = "1s"
warm_min_age = "500ms"
every = "500ms"
[profile]
sampling = "2s"
counting = "300ms"
[harm]
judge = false
"""


class Checks:
    """Counts checks that hold and checks that fail, and prints each at once."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def check(self, holds: bool, what: str, evidence: object = "") -> None:
        """Prints one check. The evidence is shown if the check fails."""
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)
        print(f"{'ok    ' if holds else 'FAILED'} {what}" + (f": {evidence}" if evidence and not holds else ""), flush=True)


def toggled(whet: Whet, checks: Checks, name: str, server_name: str, toggles: int) -> None:
    """Optimizes a family under a load, undoes and redoes it, and checks all processes each time."""
    words = LOADS[name]
    with Server(server_name) as server:
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


def states_of(whet: Whet, family: int) -> dict:
    """Returns how many processes of a family, its parent included, are in each state."""
    status = whet.run("status", "--family", family)
    states = dict(status["states"])
    own = (status.get("parent") or {}).get("state", "untouched")
    return states | {own: states.get(own, 0) + 1}


def web(whet: Whet, checks: Checks, name: str, toggles: int) -> None:
    """Optimizes a web server under requests, undoes and redoes it, and replaces its workers."""
    with Web(name) as server:
        clients = Clients(server)
        time.sleep(1)
        # The parent is one more process, unless the worker is a family of its own.
        many = server.many() + (not server.kind.by_worker)
        for _ in range(toggles):
            members = whet.run("optimize", "--family", server.family(), "--seconds", 2)["members"]
            fits = members["left_alone"] == [] and members["in_force"] + members["installed"] >= many - 1
            checks.check(fits, f"{name}: all workers have the clones", members)
            for command, state in [("undo", "undone"), ("redo", "optimized")]:
                whet.run(command, "--family", server.family())
                if server.kind.keeps:
                    server.reload()
                states = states_of(whet, server.family())
                checks.check(states == {state: many}, f"{name}: {command}, then all processes are {state}", states)
                verified = whet.run("verify", "--family", server.family())
                checks.check(verified["identical"], f"{name}: {command}, verified", verified)
            if not server.kind.keeps:
                server.reload()
                states = states_of(whet, server.family())
                checks.check(states == {"untouched": many}, f"{name}: executed anew, a new family", states)
        whet.try_run("undo", "--family", server.family())
        clients.end()
        what = f"{name}: none of {clients.done} requests failed"
        checks.check(clients.done > 0 and not clients.failures, what, clients.failures[:3])
        checks.check(not server.trouble(), f"{name}: nothing in the server's log", server.trouble()[:3])


def orphaned(whet: Whet, checks: Checks, name: str) -> None:
    """Kills the parent of an optimized family while the family is optimized again. Workers that live on stay sound
    and can be undone."""
    with Web(name) as server:
        clients = Clients(server)
        whet.run("optimize", "--family", server.family(), "--seconds", 2)
        clients.end()
        checks.check(not clients.failures, f"{name}: no request failed before its end", clients.failures[:3])
        clients = Clients(server)
        words = [whet.path, "optimize", "--family", str(server.family()), "--seconds", "30"]
        command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(2)
        workers = server.kill()
        _, errors = command.communicate(timeout=90)
        checks.check(command.returncode == GONE, f"{name}: the end of its parent ends the command", errors)
        time.sleep(1)
        # Some kinds of workers end after their parent, some serve requests for ever.
        for worker in workers:
            error = undone(whet, worker)
            # It may end at any moment.
            fits = not error or until(lambda worker=worker: state(worker) in ("", "Z"), seconds=10)
            checks.check(fits, f"{name}: a worker without a parent is undone, or has ended", error)
        clients.end()


def undone(whet: Whet, pid: int) -> str:
    """Undoes a process and verifies that no redirect is left. Returns what is wrong; "" if nothing is."""
    try:
        answer = whet.run("undo", pid)
        verified = whet.run("verify", pid)
    except WhetError as e:
        return str(e)
    fits = answer["state"] == "undone" and verified["identical"] and verified["live_redirects"] == 0
    return "" if fits else str(verified)


def adopted(whet: Whet, checks: Checks, name: str) -> None:
    """A daemon optimizes a server whose reload makes a new family. It takes the new family from the profile of the
    old one."""
    with tempfile.TemporaryDirectory(prefix="whet-families-") as folder:
        # No other process of the host has this name.
        program = Path(shutil.copy(Web.program(name), Path(folder) / f"whet-{name}"))
        with Web(name, program) as server, Daemon(Path(folder), [program], QUICK) as daemon:
            clients = Clients(server)
            found = until(lambda: state_in(daemon, server.family()) == "optimized")
            checks.check(found, f"{name}: the daemon optimizes it", daemon.targets())
            for reloads in (1, 2):
                old = server.family()
                server.reload()
                warm = until(lambda: daemon.metric("whet_warm_starts_total") >= reloads)
                checks.check(warm, f"{name}: reload {reloads}, the new family is started warm", daemon.targets())
                left = old == server.family() or state_in(daemon, old) in (None, "lost")
                checks.check(left, f"{name}: reload {reloads}, the old family has ended", daemon.targets())
            checks.check(daemon.is_well(), f"{name}: no worker of the daemon has crashed", daemon.log.read_text()[-500:])
            clients.end()
            what = f"{name}: none of {clients.done} requests failed"
            checks.check(clients.done > 0 and not clients.failures, what, clients.failures[:3])
            daemon.end()
            whet.try_run("undo", "--family", server.family())


def until(holds: Callable[[], bool], seconds: float = 120) -> bool:
    """Waits until something holds. Returns whether it does so in time."""
    limit = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > limit:
            return False
        time.sleep(0.2)
    return True


def state_in(daemon: Daemon, pid: int) -> str | None:
    """Returns the state of a process as a daemon reports it."""
    return next((t["state"] for t in daemon.targets() if t["pid"] == pid), None)


def redis(whet: Whet, checks: Checks, toggles: int) -> None:
    """Optimizes a redis server whose children save its data all of the time, undoes and redoes it."""
    with Redis() as server:
        clients = SavingClients(server)
        time.sleep(1)
        for _ in range(toggles):
            members = whet.run("optimize", "--family", server.pid, "--seconds", 2)["members"]
            checks.check(members["left_alone"] == [], "redis: all processes have the clones", members)
            for command, state in [("undo", "undone"), ("redo", "optimized")]:
                whet.run(command, "--family", server.pid)
                saves = clients.saves
                until(lambda: clients.saves > saves + 1 or clients.failures != [])
                states = set(states_of(whet, server.pid))
                checks.check(states == {state}, f"redis: {command}, then a save, all processes are {state}", states)
                verified = whet.run("verify", "--family", server.pid)
                checks.check(verified["identical"], f"redis: {command}, verified", verified)
        clients.end()
        what = f"redis: none of {clients.done} answers is wrong, none of {clients.saves} saves failed"
        checks.check(clients.done > 0 and clients.saves > 0 and not clients.failures, what, clients.failures[:3])
        checks.check(server.survives_reload(), "redis: data that clones saved and loaded are the same")
        whet.run("undo", "--family", server.pid)
        checks.check(server.survives_reload(), "redis: as are data that originals saved and loaded")
        checks.check(not server.trouble(), "redis: nothing in the server's log", server.trouble()[:3])


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
    everything = [*LOADS, *KINDS, "redis"]
    parser.add_argument("--load", choices=everything, action="append", help="only this load")
    parser.add_argument("--server", choices=NAMES, default=NAMES[0], help="the PostgreSQL of these loads")
    parser.add_argument("--long", action="store_true", help="all loads, killed parents, and reloads under a daemon")
    args = parser.parse_args()
    whet, checks = Whet(), Checks()
    for name in args.load or (everything if args.long else [*LOADS, *SHORT]):
        guarded(checks, name, lambda name=name: one(whet, checks, name, args))
    if not args.load:
        guarded(checks, "killed", lambda: killed(whet, checks))
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


def one(whet: Whet, checks: Checks, name: str, args: argparse.Namespace) -> None:
    """Runs all checks of one load."""
    begun = time.monotonic()
    toggles = 1 if name in ONE_ROUND and not args.long else args.toggles
    if name in LOADS:
        toggled(whet, checks, name, args.server, toggles)
    elif name == "redis":
        redis(whet, checks, toggles)
    else:
        web(whet, checks, name, toggles)
        if args.long:
            orphaned(whet, checks, name)
            if not KINDS[name].keeps:
                adopted(whet, checks, name)
    print(f"       {name}: {time.monotonic() - begun:.0f} s", flush=True)


def guarded(checks: Checks, name: str, test: Callable[[], None]) -> None:
    """Runs a test. An error ends this test alone; a server that is not installed is skipped."""
    try:
        test()
    except (Missing, PostgresMissing) as e:
        print(f"skipped: {e}", flush=True)
    except (PostgresError, WebError, WhetError) as e:
        checks.check(False, name, e)


if __name__ == "__main__":
    sys.exit(main())
