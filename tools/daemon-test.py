#!/usr/bin/env python3
"""Tests the daemon over time, on programs and a server of its own.

    daemon-test.py soak [--minutes N] [--seed N]   ten targets that start, fork, end and are killed, under load,
                                                   with undo and redo by hand in between: no output may differ,
                                                   nothing may stay stopped, and the daemon may not grow
    daemon-test.py loads [--seconds N]             a server whose load changes: point select, write only, range
                                                   scans; the daemon must rebuild for each change, and no query
                                                   may fail

Nothing else is touched: the daemon only has targets with names that this test makes up. $WHET is the binary.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from server import Load, Server, ServerError, exit_on_signals
from servers.room import die_with_parent
from whet_cli import Whet, WhetError
from whet_daemon import Daemon, own_mariadb

ROOT = Path(__file__).resolve().parent.parent
GUESTS = ["fork.c", "churn.c", "spawn.c", "throws.cc", "signals.c", "containers.cc", "switches.c", "tls.c", "virtuals.cc"]
TABLES, ROWS = 4, 50_000
# Settings for which much happens in a short time.
QUICK = """
[take]
cpu_percent = 2.0
min_age = "1s"
warm_min_age = "500ms"
every = "500ms"
[profile]
sampling = "1s"
counting = "300ms"
[harm]
judge = false
"""
# Seconds. A target may be stopped for milliseconds. A thread that is found stopped each time for longer than
# this stays stopped.
STUCK = 20.0


class Failed(Exception):
    """A check failed."""


@dataclass
class Tally:
    """Counts of what happened."""

    ended: int = 0
    killed: int = 0
    toggled: int = 0
    wrong: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, wrong: str | None = None) -> None:
        """Counts one more of `what`."""
        with self.lock:
            setattr(self, what, getattr(self, what) + 1)
            if wrong:
                self.wrong.append(wrong)


def stopped(pid: int) -> bool:
    """Returns whether a tracer or a signal holds any thread of a process."""
    try:
        texts = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return False
    return any(text.rpartition(")")[2].split()[0] in ("T", "t") for text in texts)


def build(folder: Path, name: str) -> Path:
    """Builds a guest, by the directives at its head."""
    source = ROOT / "guests" / name
    flags = re.findall(r"^//#(?:Flags|Link): (.*)$", source.read_text(), re.M)
    program = folder / f"whet-soak-{source.stem}"
    compiler = "gcc" if source.suffix == ".c" else "g++"
    subprocess.run([compiler, "-O2", str(source), "-o", str(program), *" ".join(flags).split()], check=True)
    return program


def run(program: Path, seconds: float) -> "subprocess.Popen[bytes]":
    """Runs a guest for some seconds."""
    return subprocess.Popen(
        [str(program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "GUEST_SECONDS": str(seconds), "GUEST_REST": "1"},
        preexec_fn=die_with_parent,
    )


def lives(program: Path, until: float, rng: random.Random, tally: Tally, alive: dict[Path, int]) -> None:
    """Starts a target again and again, until its time or the whole test is over."""
    guest = None
    try:
        plain = run(program, 0.5)
        wanted = plain.communicate(timeout=60)[0], plain.returncode
        if wanted[1] != 0:
            raise Failed(f"{program.name} ends with {wanted[1]} by itself")
        while time.monotonic() < until and not tally.over.is_set():
            seconds = rng.uniform(3, 60)
            guest = run(program, seconds)
            alive[program] = guest.pid
            one_life(guest, seconds, wanted, rng, tally)
    except Exception as e:  # noqa: BLE001: whatever it is, it is reported
        with tally.lock:
            tally.wrong.append(f"{program.name}: {e!r}")
    finally:
        if guest and guest.poll() is None:
            guest.kill()
            guest.wait()


def one_life(
    guest: "subprocess.Popen[bytes]", seconds: float, wanted: tuple[bytes, int], rng: random.Random, tally: Tally
) -> None:
    """Runs a target once: to its end, or until it is killed."""
    dies = rng.random() < 0.3
    end = time.monotonic() + (seconds * rng.random() if dies else seconds)
    while time.monotonic() < end and guest.poll() is None and not tally.over.is_set():
        time.sleep(min(rng.uniform(0.5, 10), max(end - time.monotonic(), 0.01)))
        if rng.random() < 0.3 and guest.poll() is None:
            # The exit code is ignored: the daemon may work on the target at this moment.
            Whet().try_run(rng.choice(["undo", "redo"]), guest.pid)
            tally.add("toggled")
    if tally.over.is_set():
        return
    if dies and guest.poll() is None:
        guest.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
        guest.communicate(timeout=120)
        tally.add("killed")
        return
    output, _ = guest.communicate(timeout=120)
    same = (output, guest.returncode) == wanted
    tally.add("ended", None if same else f"{guest.args}: {guest.returncode} {output!r}, plain {wanted!r}")


def soak(args: argparse.Namespace, folder: Path) -> None:
    """Runs ten targets for a long time."""
    rng = random.Random(args.seed)
    programs = [build(folder, name) for name in GUESTS]
    server_program = own_mariadb(folder, "whet-soak-mariadbd")
    settings = f'{QUICK}[reoptimize]\nevery = "5s"\nmin_interval = "30s"\n'
    tally, alive, sizes, stuck = Tally(), {}, [], {}
    with (
        Server(program=str(server_program)) as server,
        Daemon(folder, [*programs, server_program], settings) as daemon,
    ):
        server.prepare(TABLES, ROWS)
        until = time.monotonic() + args.minutes * 60
        threads = [
            threading.Thread(target=lives, args=(p, until, random.Random(rng.random()), tally, alive)) for p in programs
        ]
        with Load(server.socket, "oltp_read_write", 2, None, TABLES, ROWS) as load:
            for t in threads:
                t.start()
            next_line = 0.0
            while any(t.is_alive() for t in threads) and not tally.wrong:
                time.sleep(1)
                now = time.monotonic()
                if not daemon.is_well():
                    tally.wrong.append(f"the daemon is not well: {daemon.process.poll()}")
                    break
                sizes.append((now, daemon.size()))
                for pid in [server.pid, *alive.values()]:
                    if stopped(pid):
                        if now - stuck.setdefault(pid, now) > STUCK:
                            tally.wrong.append(f"{pid} stays stopped")
                    else:
                        stuck.pop(pid, None)
                if now >= next_line:
                    next_line = now + 60
                    resident, files, tasks, zombies = sizes[-1][1]
                    print(
                        f"{(until - now) / 60:5.1f} min left: {tally.ended} ended, {tally.killed} killed, {tally.toggled} undo or "
                        f"redo, {daemon.metric('whet_rebuilds_total'):.0f} rebuilds; daemon {resident / 1e6:.1f} MB, {files} files, "
                        f"{tasks} threads, {zombies} zombies",
                        flush=True,
                    )
            tally.over.set()
            for t in threads:
                t.join(300)
            outcome = load.finish()
        deadlocks = server.deadlocks()
        rebuilds = daemon.metric("whet_rebuilds_total")
        daemon.whet.run("undo", server.pid)
        verified = daemon.whet.run("verify", server.pid)
        complaints = server.error_lines()
        ended = daemon.end()
    check("every run did as the plain one", not tally.wrong, "; ".join(tally.wrong[:5]) or f"{tally.ended} runs")
    check("the daemon ends in order", ended == 0, f"exit code {ended}")
    check("no query failed", outcome.clean_but_for(deadlocks), str(outcome))
    check("the server complains of nothing", not complaints, "; ".join(complaints[:3]))
    check("the server's code is its file's", verified["identical"], str(verified["unexpected"]))
    # From the second third on, the daemon has met all its targets.
    third = len(sizes) // 3
    early, late = [[s[1] for s in part] for part in (sizes[third : 2 * third], sizes[2 * third :])]
    for i, (what, slack) in enumerate([("memory", 4e6), ("open files", 4), ("threads", 2), ("zombies", 1)]):
        most = [max(s[i] for s in part) for part in (early, late)]
        check(f"{what} of the daemon does not grow", most[1] <= most[0] * 1.1 + slack, f"at most {most[0]}, then {most[1]}")
    never = {p.name for p in [*programs, server_program]} - rebuilt(daemon)
    check("every program was rebuilt", not never, f"{rebuilds:.0f} times; {reasons(daemon, never) or 'each'}")


def rebuilt(daemon: Daemon) -> set[str]:
    """Returns the programs for which clones were made, from the daemon's log: some targets live for seconds
    only."""
    found = re.findall(r'clones hold .* exe="([^"]*)" state="optimized"', daemon.log.read_text())
    return {Path(exe).name for exe in found}


def reasons(daemon: Daemon, names: set[str]) -> str:
    """Returns what the daemon logged of programs, and how often."""
    said: Counter[str] = Counter()
    for line in daemon.log.read_text().splitlines():
        found = re.search(r'(?:INFO|WARN) (.*) pid=.*exe="[^"]*/([^"/]*)" state="(\w+)"', line)
        if found and found[2] in names:
            said[f"{found[2]} {found[3]}: {found[1]}"] += 1
    return "; ".join(f"{n} times {what}" for what, n in said.most_common(10))


def loads(args: argparse.Namespace, folder: Path) -> None:
    """Runs one server under three loads."""
    program = own_mariadb(folder, "whet-loads-mariadbd")
    settings = f'{QUICK}[reoptimize]\nevery = "3s"\nmin_interval = "10s"\n'
    with Server(program=str(program)) as server:
        # The preparation is a load of its own, so it comes first.
        server.prepare(TABLES, ROWS)
        with Daemon(folder, [program], settings) as daemon:
            change_loads(server, daemon, args.seconds)


def change_loads(server: Server, daemon: Daemon, seconds: float) -> None:
    """Runs the loads, one after the other."""
    deadlocks = 0
    for name in ["oltp_point_select", "oltp_write_only", "select_random_ranges"]:
        while daemon.busy():
            time.sleep(0.2)
        before, began = daemon.metric("whet_rebuilds_total"), time.monotonic()
        with Load(server.socket, name, 4, None, TABLES, ROWS) as load:
            while daemon.metric("whet_rebuilds_total") <= before and time.monotonic() - began < seconds:
                time.sleep(0.2)
            took, rebuilds = time.monotonic() - began, daemon.metric("whet_rebuilds_total")
            time.sleep(5)
            outcome = load.finish()
        check(f"{name}: rebuilt for", rebuilds > before, f"after {took:.1f} s")
        well = outcome.clean_but_for(server.deadlocks() - deadlocks)
        check(f"{name}: no query failed", well, f"{outcome.queries} queries")
        deadlocks = server.deadlocks()
    daemon.whet.run("undo", server.pid)
    verified = daemon.whet.run("verify", server.pid)
    check("the server's code is its file's", verified["identical"], str(verified["unexpected"]))


def check(promise: str, kept: bool, detail: str) -> None:
    """Prints one line. Raises Failed if the check does not hold."""
    print(f"{'ok  ' if kept else 'FAIL'} {promise}: {detail}", flush=True)
    if not kept:
        raise Failed(promise)


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["soak", "loads"])
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--seconds", type=float, default=90, help="for each load to be rebuilt for")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    # Servers run as a user of their own, which must be able to read the program.
    with tempfile.TemporaryDirectory(prefix="whet-daemon-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            {"soak": soak, "loads": loads}[args.what](args, folder)
        except (Failed, ServerError, WhetError, OSError, subprocess.CalledProcessError) as e:
            print(f"daemon-test: {e}", file=sys.stderr)
            log = folder / "log"
            lines = log.read_text().splitlines() if log.exists() else []
            # All warnings are shown, and the last lines.
            print("\n".join([line for line in lines[:-20] if " WARN " in line] + lines[-20:]), file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
