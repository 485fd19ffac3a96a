#!/usr/bin/env python3
"""The acceptance test on a real server under sysbench: Debian's stripped mariadbd, or another server by its
name.

Default: the server is optimized under load, the clones are undone and redone many times, and at last
everything is undone and verified. No query may fail, and nothing may appear in the server's error log. The
test prints how long the server was stopped.

  --shuffle SEED   every clonable function, in random order, under oltp_read_write: correctness, not speed
  --crash          an optimized server is killed by SIGSEGV in a busy thread; the stack trace that it writes to its
                   own error log must be whole, through the clones

The last line is "N passed, N failed".
"""

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from mysql_wire import MysqlError
from server import Load, LoadResult, Server, ServerError, exit_on_signals, tail
from servers import NAMES, FetchError
from servers.room import LIBC
from whet_cli import Whet, WhetError

TABLES, ROWS = 4, 100_000
COVERAGE = 0.85
WARM_UP = 3.0
SYS_TGKILL = 234


class Checks:
    """Counts checks that hold and checks that fail, and prints each at once."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def check(self, holds: bool, what: str, evidence: object = "") -> bool:
        """Prints one check. The evidence is shown if the check fails. Returns whether it holds."""
        if holds:
            self.passed += 1
        else:
            self.failed += 1
        print(f"{'ok    ' if holds else 'FAILED'} {what}" + (f": {evidence}" if evidence and not holds else ""), flush=True)
        return holds

    def works(self, what: str, act: Callable[[], dict]) -> dict:
        """Checks that a whet command succeeds. Returns its output, {} if it fails."""
        try:
            answer = act()
        except WhetError as e:
            self.check(False, what, e)
            return {}
        self.check(True, what)
        return answer


def show_stops(name: str, answers: list[dict]) -> None:
    """Prints the stops of some commands in one line."""
    stops = [a["stop_ms"] for a in answers if "stop_ms" in a]
    if stops:
        print(f"       {name:<8} stop: median {median(s['median'] for s in stops):.2f} ms, max {max(s['max'] for s in stops):.2f} ms")


def optimize(checks: Checks, whet: Whet, pid: int, shuffle: int | None) -> dict:
    """Optimizes the server under its load and returns whet's output."""
    words = ["optimize", pid] + (["--shuffle", shuffle] if shuffle is not None else [])
    began = time.monotonic()
    answer = checks.works("optimize", lambda: whet.run(*words))
    took = time.monotonic() - began
    if answer:
        functions = answer["functions"]
        print(
            f"       {functions['cloned']} functions cloned, {functions['refused']} refused, {took:.1f} s, "
            f"whet's CPU time {whet.cpu_seconds:.1f} s, peak memory {answer['whet_peak_rss_mb']:.0f} MB"
        )
        # Stress mode also clones functions that never ran, so coverage says nothing there.
        if shuffle is None:
            coverage = answer["coverage_main"]
            print(f"       in clones: {coverage:.3f} of the program's samples, {answer['coverage']:.3f} of all")
            checks.check(coverage >= COVERAGE, f"at least {COVERAGE} of the program's samples are in clones", coverage)
    return answer


def toggle(checks: Checks, whet: Whet, pid: int, toggles: int, until: float) -> None:
    """Runs undo and redo, evenly over the time that is left."""
    undone, redone = [], []
    try:
        for i in range(toggles):
            for word, answers in (("undo", undone), ("redo", redone)):
                answers.append(whet.run(word, pid))
                steps_left = 2 * toggles - len(undone) - len(redone) + 1
                time.sleep(max(0.0, (until - time.monotonic()) / steps_left))
        checks.check(True, f"{toggles} times undo and redo")
    except WhetError as e:
        checks.check(False, f"{toggles} times undo and redo", f"toggle {i + 1}: {e}")
    show_stops("undo", undone)
    show_stops("redo", redone)


def capture_and_replay(checks: Checks, whet: Whet, pid: int, installed: dict) -> None:
    """Captures the optimized server. The capture alone must give the same clones, each time the same."""
    with tempfile.TemporaryDirectory(prefix="whet-capture-") as folder:
        file = Path(folder) / "server.capture"
        # In stress mode each takes a debug build most of a minute of CPU time.
        captured = checks.works("capture", lambda: whet.run("capture", pid, "-o", file, timeout=600))
        first = checks.works("replay", lambda: whet.run("replay", file, timeout=600))
        if captured and first:
            again = whet.run("replay", file, timeout=600)
            checks.check(first == again, "a second replay gives the same answer")
            cloned, rebuilt = installed["functions"]["cloned"], first["functions"]["cloned"]
            print(f"       capture of {captured['bytes'] / 1e6:.1f} MB; a replay clones {rebuilt} functions")
            # The server may have loaded or bound more code since then.
            enough = rebuilt >= 0.98 * cloned if installed.get("source") != "none" else rebuilt > 0
            checks.check(enough, "a replay clones what was cloned", f"{rebuilt} of {cloned} functions")


def undo_and_verify(checks: Checks, whet: Whet, pid: int) -> None:
    """Undoes all clones. The server's code must then be identical to the file."""
    checks.works("undo", lambda: whet.run("undo", pid))
    answer = checks.works("verify", lambda: whet.run("verify", pid))
    identical = answer.get("identical") is True and not answer.get("unexpected")
    checks.check(identical, "after undo all code is identical to the files", json.dumps(answer)[:2000])


def no_failed_query(checks: Checks, load: Load, result: LoadResult, deadlocks: int) -> None:
    """Checks sysbench's result."""
    print(f"       {result.queries} queries in {result.seconds:.0f} s")
    checks.check(result.exit_code == 0, "sysbench ended well", f"exit code {result.exit_code}\n{load.text()[-2000:]}")
    well = result.queries > 0 and result.clean_but_for(deadlocks)
    checks.check(well, "no failed query, no lost connection", f"{deadlocks} deadlocks; {result}")


def acceptance(checks: Checks, whet: Whet, options: argparse.Namespace) -> None:
    """Optimizes, toggles, undoes and verifies a server, all of it under load."""
    test = "oltp_read_only" if options.shuffle is None else "oltp_read_write"
    with Server(options.server) as server:
        server.prepare(TABLES, ROWS)
        errors_before = server.error_lines()
        began = time.monotonic()
        # The load has no end of its own: on a busy machine the steps may take longer than planned.
        with Load(server.socket, test, options.connections, None, TABLES, ROWS) as load:
            time.sleep(WARM_UP)
            installed = optimize(checks, whet, server.pid, options.shuffle)
            if installed:
                show_stops("install", [installed])
                capture_and_replay(checks, whet, server.pid, installed)
                # The last undo and verify must happen under load as well.
                toggle(checks, whet, server.pid, options.toggles, began + options.seconds - 5)
                undo_and_verify(checks, whet, server.pid)
                checks.check(load.running(), "all of it happened under load", "sysbench ended before")
            result = load.finish()
            no_failed_query(checks, load, result, server.deadlocks())
        code = server.shut_down()
        checks.check(code == 0, "the server shuts down in order", f"exit code {code}\n{tail(server.error_log)}")
        errors = server.error_lines()[len(errors_before) :]
        checks.check(not errors, "nothing in the error log", "\n".join(errors))


# A frame in the server's own stack trace. MariaDB and MySQL 5.6: `/usr/sbin/mariadbd(name+0x1f)[0x5581...]`, MariaDB
# 11.8 with a space before the bracket. MySQL 9.7: ` #3 0x7f38... name`, where the last address is all ones.
FRAME = re.compile(r"^(?:\S* ?\[(0x[0-9a-f]+)\]|\s*#\d+ (0x[0-9a-f]+) .*)$", re.M)


class CodeMap:
    """The executable mappings of a process at one moment."""

    def __init__(self, pid: int):
        self.ranges = []
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            where, perms, _offset, _device, inode, *path = line.split(maxsplit=5)
            if "x" in perms:
                start, end = (int(x, 16) for x in where.split("-"))
                self.ranges.append((start, end, path[0] if path else "" if inode == "0" else "?"))

    def file(self, address: int) -> str | None:
        """Returns the file mapped at an address; "" for code without a file, as clones are; None if there is
        no code."""
        return next((path for start, end, path in self.ranges if start <= address < end), None)


def busiest_thread(pid: int) -> int:
    """Returns the thread that used most CPU in the last half second: it serves queries."""

    def used() -> dict[int, int]:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return {int(t.name): int((t / "schedstat").read_text().split()[0]) for t in tasks}

    before = used()
    time.sleep(0.5)
    return max((ns - before.get(tid, ns), tid) for tid, ns in used().items())[1]


def crash(checks: Checks, whet: Whet, options: argparse.Namespace) -> None:
    """Checks a crash report through clones. The server must die here, so the load's errors do not count."""
    with Server(options.server) as server:
        server.prepare(1, 10_000)
        with Load(server.socket, "oltp_read_only", options.connections, None, 1, 10_000) as load:
            time.sleep(WARM_UP)
            if not optimize(checks, whet, server.pid, options.shuffle):
                return
            time.sleep(1)
            checks.check(load.running() and server.alive(), "the server serves queries until it is killed")
            code_map = CodeMap(server.pid)
            LIBC.syscall(SYS_TGKILL, server.pid, busiest_thread(server.pid), signal.SIGSEGV)
            code = server.wait(60)
        # MySQL writes the report and then exits with 1 or 2.
        checks.check(code in (-signal.SIGSEGV, 1, 2), "the server ended by the signal", f"exit code {code}")
        log = server.error_log.read_text(errors="replace")
        trace = log.partition("Attempting backtrace")[2].partition("Trying to get some variables")[0]
        frames = [f for f in FRAME.finditer(trace) if (f[1] or f[2]).strip("0xf")]
        files = [code_map.file(int(f[1] or f[2], 16)) for f in frames]
        print("\n".join(f"       {f[0]}" for f in frames))
        checks.check(len(frames) >= 8, "the stack trace has at least 8 frames", f"{len(frames)}\n{log[-3000:]}")
        checks.check("" in files, "it goes through clones", files)
        libc = [file is not None and "libc.so" in file for file in files[-2:]]
        checks.check(libc == [True, True], "it goes down to the start of the thread", files[-2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=NAMES, default=NAMES[0], help="the server (default: Debian's mariadbd)")
    parser.add_argument("--seconds", type=int, default=40, help="length of the load (default 40; the long form is 180)")
    parser.add_argument("--toggles", type=int, default=10, help="pairs of undo and redo (default 10; the long form is 50)")
    parser.add_argument("--connections", type=int, default=8, help="sysbench threads (default 8)")
    parser.add_argument("--shuffle", type=int, metavar="SEED", help="stress mode, under oltp_read_write")
    parser.add_argument("--crash", action="store_true", help="the crash report instead of the acceptance")
    parser.add_argument("--whet", help="the binary (default: $WHET, else target/release/whet)")
    options = parser.parse_args()
    exit_on_signals()

    checks = Checks()
    try:
        (crash if options.crash else acceptance)(checks, Whet(options.whet), options)
    except KeyboardInterrupt:
        return 130
    except (FetchError, MysqlError, ServerError, WhetError, OSError) as e:
        checks.check(False, "the test came to its end", e)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
