"""What all tests of families use: counted checks, waiting, and the states of a family's processes."""

import time
from collections.abc import Callable

from whet_cli import Whet, WhetError
from whet_daemon import Daemon, state


class Checks:
    """Counts checks that hold and checks that fail, and prints each at once."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

    def check(self, holds: bool, what: str, evidence: object = "") -> None:
        """Prints one check. The evidence is shown if the check fails."""
        self.passed, self.failed = self.passed + bool(holds), self.failed + (not holds)
        print(f"{'ok    ' if holds else 'FAILED'} {what}" + (f": {evidence}" if evidence and not holds else ""), flush=True)


def states_of(whet: Whet, family: int) -> dict:
    """Returns how many processes of a family, its parent included, are in each state."""
    status = whet.run("status", "--family", family)
    states = dict(status["states"])
    own = (status.get("parent") or {}).get("state", "untouched")
    return states | {own: states.get(own, 0) + 1}


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


def undone(whet: Whet, pid: int) -> str:
    """Undoes a process and verifies that no redirect is left. Returns what is wrong; "" if nothing is."""
    try:
        answer = whet.run("undo", pid)
        verified = whet.run("verify", pid)
    except WhetError as e:
        return str(e)
    fits = answer["state"] == "undone" and verified["identical"] and verified["live_redirects"] == 0
    return "" if fits else str(verified)
