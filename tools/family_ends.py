"""The ends of families: the parent is killed, or replaced by another, while whet works on the family. The command ends
in order, nothing is left stopped, children that live on can be undone, and a server that is started again has the
right data."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from family_checks import Checks, states_of, undone, until
from postgres import Server
from redis_server import Redis, SavingClients
from webservers import Clients, Web
from whet_cli import Whet, WhetError
from whet_daemon import children, state

# What whet does when the parent is killed. The long form has all, the short form the first.
PHASES = ["sampling", "counting", "undo and redo"]
NO_SUCH_PROCESS, GONE = 3, 10


def killed_while(
    whet: Whet, phase: str, family: int, kill: Callable[[], object], *, busy_parent: bool = False
) -> tuple[bool, object]:
    """Ends the parent of a family while whet works on the family. Returns whether whet ended in order, and what it
    said. Clones count in the busiest process: the parent, if `busy_parent`, else a child."""
    if phase == "undo and redo":
        return killed_between(whet, family, kill)
    times = ["--seconds", "30"] if phase == "sampling" else ["--seconds", "1", "--count", "600"]
    words = [whet.path, "optimize", "--family", str(family), *times]
    command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    states = (lambda: states_of(whet, family)) if busy_parent else lambda: whet.run("status", "--family", family)["states"]
    begun = samples if phase == "sampling" else lambda _: "counting" in states()
    until(lambda: begun(command.pid) or command.poll() is not None)
    kill()
    errors = ended(command)
    return command.returncode == GONE, f"exit code {command.returncode}: {errors}"


def ended(command: subprocess.Popen[str]) -> str:
    """Waits for the end of a command, and returns its messages. One that does not end is killed."""
    try:
        return command.communicate(timeout=90)[1]
    except subprocess.TimeoutExpired:
        command.kill()
        return f"it did not end; {command.communicate()[1]}"


def samples(pid: int) -> bool:
    """Returns whether a process of whet samples now."""
    try:
        return any("perf_event" in os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:
        # A file was closed, or the process has ended.
        return False


def killed_between(whet: Whet, family: int, kill: Callable[[], object]) -> tuple[bool, object]:
    """Does the same with undo and redo in turns. The parent ends in the midst of the fourth command."""
    took = 0.0
    for number in range(5):
        begun = time.monotonic()
        words = [whet.path, ["undo", "redo"][number % 2], "--family", str(family)]
        command = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if number == 3:
            time.sleep(took / 2)
            kill()
        errors = ended(command)
        took = time.monotonic() - begun
        if command.returncode:
            break
    # A command that a busy host delays finds no process.
    in_order = number >= 3 and command.returncode in (GONE, NO_SUCH_PROCESS)
    return in_order, f"command {number}, exit code {command.returncode}: {errors}"


def left_stopped(pids: set[int]) -> set[int]:
    """Returns those of some processes that are stopped, and go on being so."""
    until(lambda: not any(state(pid) in ("T", "t") for pid in pids), seconds=5)
    return {pid for pid in pids if state(pid) in ("T", "t")}


def postmaster_killed(
    whet: Whet, checks: Checks, name: str, server: Server, words: list[str], phases: list[str]
) -> None:
    """Kills the postmaster of an optimized family under a load, once in each phase, and starts the server again."""
    for phase in phases:
        what = f"{name}: its postmaster killed in {phase}"
        _, before = server.books()
        loop = server.loop()
        load = server.load("-c", "4", "-j", "1", "-T", "600", *words)
        if whet.run("status", "--family", server.pid)["states"].get("undone"):
            whet.run("redo", "--family", server.pid)
        else:
            whet.run("optimize", "--family", server.pid, "--seconds", 1)
        checks.check(load.is_running() and not load.trouble(), f"{what}, no client failed before", load.trouble())
        backends = set(children(server.pid))
        in_order, said = killed_while(whet, phase, server.pid, server.kill)
        checks.check(in_order, f"{what}, the command ends in order", said)
        checks.check(not left_stopped(backends), f"{what}, no process is left stopped", left_stopped(backends))
        # This one does not notice the end.
        error = undone(whet, loop)
        checks.check(not error and state(loop) in ("R", "S", "D"), f"{what}, a backend that lives on is undone", error)
        os.kill(loop, signal.SIGKILL)
        confirmed = load.acknowledged() if "-S" not in words else 0
        server.restart_after_kill(backends)
        fits, length = server.books()
        fits &= before + confirmed <= length <= before + confirmed + 4
        checks.check(fits, f"{what}, the data are right", (server.books(), before, confirmed))


def web_parent_killed(whet: Whet, checks: Checks, name: str, phases: list[str]) -> None:
    """Kills the parent of an optimized family of a web server under requests."""
    for phase in phases:
        what = f"{name}: its parent killed in {phase}"
        with Web(name) as server:
            clients = Clients(server)
            whet.run("optimize", "--family", server.family(), "--seconds", 2)
            workers, failures = server.workers(), list(clients.failures)
            in_order, said = killed_while(whet, phase, server.family(), server.kill)
            checks.check(not failures, f"{what}, no request failed before", failures[:3])
            checks.check(in_order, f"{what}, the command ends in order", said)
            checks.check(not left_stopped(workers), f"{what}, no process is left stopped", left_stopped(workers))
            # Some kinds of workers end after their parent, some serve requests for ever.
            for worker in workers:
                error = undone(whet, worker)
                # It may end at any moment.
                fits = not error or until(lambda worker=worker: state(worker) in ("", "Z"), seconds=10)
                checks.check(fits, f"{what}, a worker is undone, or has ended", error)
            clients.end()


def web_replaced(whet: Whet, checks: Checks, name: str) -> None:
    """Lets a web server under requests replace itself by a new family, while the old one is optimized: by a binary
    upgrade, or because it executes itself anew."""
    with Web(name) as server:
        clients = Clients(server)
        whet.run("optimize", "--family", server.family(), "--seconds", 2)
        old, finish = server.family(), server.reload
        many = 1 + server.members()
        if server.kind.detached:
            server.upgrade()
            # The new parent is a child of the old one.
            states = [states_of(whet, family) for family in (server.family(), old)]
            fits = states == [{"untouched": many}, {"optimized": many}]
            checks.check(fits, f"{name}: upgraded, the new family is untouched, the old one optimized", states)
            finish = lambda: server.retire(old)
        in_order, said = killed_while(whet, "sampling", old, finish)
        checks.check(in_order, f"{name}: its family is replaced, the command on the old one ends in order", said)
        states = states_of(whet, server.family())
        checks.check(states == {"untouched": many}, f"{name}: its family is replaced, the new one is untouched", states)
        members = whet.run("optimize", "--family", server.family(), "--seconds", 2)["members"]
        checks.check(members["left_alone"] == [], f"{name}: the new family is optimized", members)
        whet.run("undo", "--family", server.family())
        clients.end()
        what = f"{name}: its family is replaced, none of {clients.done} requests failed"
        checks.check(clients.done > 0 and not clients.failures, what, clients.failures[:3])
        checks.check(not server.trouble(), f"{name}: nothing in the server's log", server.trouble()[:3])


def postgres_restarted(whet: Whet, checks: Checks) -> None:
    """Restarts PostgreSQL while its family is optimized again under TPC-B."""
    with Server() as server:
        load = server.load("-c", "4", "-j", "1", "-T", "600")
        until(lambda: server.books()[1] > 0)
        whet.run("optimize", "--family", server.pid, "--seconds", 3)
        backends = set(children(server.pid))
        checks.check(not load.trouble(), "restart: no client failed before", load.trouble())
        in_order, said = killed_while(whet, "sampling", server.pid, server.restart)
        checks.check(in_order, "restart: the command ends in order", said)
        checks.check(until(lambda: not any(map(state, backends)), 30), "restart: the old family has ended", backends)
        states = states_of(whet, server.pid)
        checks.check(set(states) == {"untouched"}, "restart: the new family is untouched", states)
        fits, length = server.books()
        checks.check(fits and load.acknowledged() <= length, "restart: the data are right", server.books())
        load = server.load("-c", "4", "-j", "1", "-T", "600")
        until(lambda: server.books()[1] > length)
        members = whet.run("optimize", "--family", server.pid, "--seconds", 3)["members"]
        checks.check(members["left_alone"] == [], "restart: the new family is optimized", members)
        whet.run("undo", "--family", server.pid)
        checks.check(load.is_running() and not load.trouble(), "restart: no client failed afterwards", load.trouble())


def redis_killed(whet: Whet, checks: Checks, phases: list[str]) -> None:
    """Kills a redis server in the midst of a save, under writes and reads, and starts it again."""
    for phase in phases:
        what = f"redis: killed in a save and in {phase}"
        with Redis() as server:
            server.save_slowly()
            clients = SavingClients(server)
            members = whet.run("optimize", "--family", server.pid, "--seconds", 1)["members"]
            checks.check(members["left_alone"] == [], f"{what}, all processes have the clones", members)
            until(lambda: children(server.pid))
            saving, failures = set(children(server.pid)), list(clients.failures)
            in_order, said = killed_while(whet, phase, server.pid, server.kill, busy_parent=True)
            checks.check(saving and not failures, f"{what}, no answer was wrong before", failures[:3])
            checks.check(in_order, f"{what}, the command ends in order", said)
            checks.check(not left_stopped(saving), f"{what}, no process is left stopped", left_stopped(saving))
            for child in saving:
                error = undone(whet, child)
                fits = not error or until(lambda child=child: state(child) in ("", "Z"), seconds=10)
                checks.check(fits, f"{what}, the child that saves is undone, or has ended", error)
            clients.end()
            server.start()
            lost = server.lost(clients.expected)
            checks.check(clients.done > 0 and not lost, f"{what}, then all data are there", lost[:3])
            checks.check(server.survives_reload(), f"{what}, and are saved and loaded")
