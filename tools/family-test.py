#!/usr/bin/env python3
"""Servers of many processes as families: each is private, and is optimized under its own load with `--family`,
undone and redone many times, and verified. No transaction, request or answer may fail, and the server's log must
not show an error.

Each load of PostgreSQL gets a server of its own: select-only, TPC-B, and select-only with a new connection for
each transaction. The web servers have four workers, which a reload replaces. redis saves its data in forked
children all of the time. At last each postmaster, and redis in the midst of a save, is killed while its family is
optimized again: the command ends in order, and the server that is started again has the right data.

`--long` takes all web servers, kills the parents while whet samples, counts, undoes and redoes, and lets a daemon
take PostgreSQL, which is restarted, and the servers whose reload makes a new family. A server that is not installed,
or cannot be fetched, is skipped. `--server` chooses another PostgreSQL.

The last line is "N passed, N failed".
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from family_checks import Checks, state_in, states_of, until
from family_ends import (
    PHASES, postgres_restarted, postmaster_killed, redis_killed, web_parent_killed, web_replaced,
)
from postgres import NAMES, PostgresError, PostgresMissing, Server, programs
from redis_server import Redis, SavingClients
from server import exit_on_signals
from webservers import KINDS, Clients, Missing, Web, WebError
from whet_cli import Whet, WhetError
from whet_daemon import Daemon

LOADS = {"select": ["-S"], "tpcb": [], "reconnect": ["-S", "-C"]}
# The servers of the short form, and those of them that are optimized once there.
SHORT = ["nginx", "haproxy", "redis"]
ONE_ROUND = ["haproxy", "redis"]
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


def toggled(whet: Whet, checks: Checks, name: str, server_name: str, toggles: int, phases: list[str]) -> None:
    """Optimizes a family under a load, undoes and redoes it, and checks all processes each time. At last its
    postmaster is killed in each phase."""
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
        postmaster_killed(whet, checks, name, server, words, phases)


def web(whet: Whet, checks: Checks, name: str, toggles: int) -> None:
    """Optimizes a web server under requests, undoes and redoes it, and replaces its workers. A server before it is
    optimized as well."""
    with Web(name) as server:
        clients = Clients(server)
        time.sleep(1)
        for _ in range(toggles):
            for each in server.families():
                members = whet.run("optimize", "--family", each.family(), "--seconds", 2)["members"]
                fits = members["left_alone"] == [] and members["in_force"] + members["installed"] >= each.members()
                checks.check(fits, f"{each.name}: all workers have the clones", members)
            for command, state in [("undo", "undone"), ("redo", "optimized")]:
                for each in server.families():
                    toggled_web(whet, checks, each, command, state)
            if not server.kind.keeps:
                server.reload()
                states = states_of(whet, server.family())
                fits = states == {"untouched": 1 + server.members()}
                checks.check(fits, f"{name}: a new family is untouched", states)
        for each in server.families():
            whet.try_run("undo", "--family", each.family())
        clients.end()
        what = f"{name}: none of {clients.done} requests failed"
        checks.check(clients.done > 0 and not clients.failures, what, clients.failures[:3])
        checks.check(not server.trouble(), f"{name}: nothing in the server's log", server.trouble()[:3])


def toggled_web(whet: Whet, checks: Checks, server: Web, command: str, state: str) -> None:
    """Undoes or redoes the family of a web server, and lets it start new workers."""
    whet.run(command, "--family", server.family())
    if server.kind.keeps:
        server.reload()
    states = states_of(whet, server.family())
    what = f"{server.name}: {command}, then all processes are {state}"
    checks.check(states == {state: 1 + server.members()}, what, states)
    verified = whet.run("verify", "--family", server.family())
    checks.check(verified["identical"], f"{server.name}: {command}, verified", verified)


def adopted(whet: Whet, checks: Checks, name: str) -> None:
    """A daemon optimizes a server whose reload makes a new family. It takes the new family from the profile of the
    old one."""
    with tempfile.TemporaryDirectory(prefix="whet-families-") as folder:
        # No other process of the host has this name.
        program = Path(shutil.copy(Web.program(KINDS[name]), Path(folder) / f"whet-{name}"))
        with Web(name, program) as server, Daemon(Path(folder), [program], QUICK) as daemon:
            clients = Clients(server)
            replaced_twice(checks, name, daemon, server.family, server.reload)
            clients.end()
            what = f"{name}: none of {clients.done} requests failed"
            checks.check(clients.done > 0 and not clients.failures, what, clients.failures[:3])
            daemon.end()
            whet.try_run("undo", "--family", server.family())


def replaced_twice(
    checks: Checks, name: str, daemon: Daemon, family: Callable[[], int], replace: Callable[[], None]
) -> None:
    """Replaces a family that a daemon has optimized by a new one, twice."""
    found = until(lambda: state_in(daemon, family()) == "optimized")
    checks.check(found, f"{name}: the daemon optimizes it", daemon.targets())
    for times in (1, 2):
        old = family()
        replace()
        warm = until(lambda: daemon.metric("whet_warm_starts_total") >= times)
        checks.check(warm, f"{name}: replaced, {times}, the new family is started warm", daemon.targets())
        left = old == family() or state_in(daemon, old) in (None, "lost")
        checks.check(left, f"{name}: replaced, {times}, the old family has ended", daemon.targets())
    checks.check(daemon.is_well(), f"{name}: no worker of the daemon has crashed", daemon.log.read_text()[-500:])


def postgres_adopted(whet: Whet, checks: Checks) -> None:
    """A daemon optimizes a PostgreSQL that is restarted."""
    with tempfile.TemporaryDirectory(prefix="whet-families-") as folder:
        # The server's user must reach it.
        Path(folder).chmod(0o755)
        program = Path(shutil.copy(programs(NAMES[0]).bin / "postgres", Path(folder) / "whet-postgres"))
        with Server(program=program) as server, Daemon(Path(folder), [program], QUICK) as daemon:
            begin = lambda: server.load("-c", "4", "-j", "1", "-T", "600")
            loads = [begin()]

            def restart() -> None:
                checks.check(not loads[-1].trouble(), "restart: no client failed before", loads[-1].trouble())
                server.restart()
                loads.append(begin())

            replaced_twice(checks, "restart", daemon, lambda: server.pid, restart)
            checks.check(not loads[-1].trouble(), "restart: no client failed afterwards", loads[-1].trouble())
            daemon.end()
            checks.check(server.books()[0], "restart: the data are right", server.books())
            whet.try_run("undo", "--family", server.pid)


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toggles", type=int, default=3, help="how often each family is undone and redone")
    everything = [*LOADS, "restart", *KINDS, "redis"]
    parser.add_argument("--load", choices=everything, action="append", help="only this load")
    parser.add_argument("--server", choices=NAMES, default=NAMES[0], help="the PostgreSQL of these loads")
    parser.add_argument("--long", action="store_true", help="all loads, killed parents, and reloads under a daemon")
    args = parser.parse_args()
    # A test that is ended leaves no server behind.
    exit_on_signals()
    whet, checks = Whet(), Checks()
    for name in args.load or (everything if args.long else [*LOADS, *SHORT]):
        guarded(checks, name, lambda name=name: one(whet, checks, name, args))
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


def one(whet: Whet, checks: Checks, name: str, args: argparse.Namespace) -> None:
    """Runs all checks of one load."""
    begun = time.monotonic()
    phases = PHASES if args.long else PHASES[:1]
    toggles = 1 if name in ONE_ROUND and not args.long else args.toggles
    if name in LOADS:
        toggled(whet, checks, name, args.server, toggles, phases)
    elif name == "restart":
        postgres_restarted(whet, checks)
        postgres_adopted(whet, checks)
    elif name == "redis":
        redis(whet, checks, toggles)
        redis_killed(whet, checks, phases)
    else:
        web(whet, checks, name, toggles)
        if args.long:
            web_parent_killed(whet, checks, name, phases)
            if not KINDS[name].keeps:
                web_replaced(whet, checks, name)
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
