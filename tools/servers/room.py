"""Where a server process lives: its user, its root, and its end with the program that started it."""

import ctypes
import os
import pwd
import signal
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """In a new child: end with this program even where it gets no chance to clean up (kill -9)."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def mount(source: str, target: str, flags: int) -> None:
    """mount(2) of an existing folder."""
    if LIBC.mount(source.encode(), target.encode(), None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {source} on {target}: {os.strerror(number)}")


def room(user: str | None, root: Path | None, *folders: Path) -> Callable[[], None]:
    """What a process is to do before it becomes the server. It works in the first of `folders`; all have the same names
    in another root as outside, and what is mounted for that is seen by this process alone and gone with it."""
    account = pwd.getpwnam(user) if user else None
    if root is not None:
        for name in ("dev", "proc", *(str(folder).lstrip("/") for folder in folders)):
            (root / name).mkdir(parents=True, exist_ok=True)

    def enter() -> None:
        if root is not None:
            if LIBC.unshare(CLONE_NEWNS) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"unshare: {os.strerror(number)}")
            mount("none", "/", MS_REC | MS_PRIVATE)
            for name in ("/dev", "/proc", *map(str, folders)):
                mount(name, str(root) + name, MS_BIND | MS_REC)
            os.chroot(root)
        os.chdir(folders[0])
        if account is not None:
            os.setgroups([])
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)

    return enter


def entered(user: str | None, root: Path | None, folder: Path) -> Callable[[], None]:
    """What a new child is to do before it becomes the server: `room`, and its end with this program."""
    enter = room(user, root, folder)

    def enter_and_stay_bound() -> None:
        enter()
        # The last: the kernel drops the death signal where the user changes.
        die_with_parent()

    return enter_and_stay_bound


def left(root: Path | None, *folders: Path) -> None:
    """Removes the empty folders on which `folders` were mounted, and those above them that are empty then."""
    for place in (root / str(folder).lstrip("/") for folder in folders if root is not None):
        try:
            # What stands in the root itself is the server's.
            while place.parent != root:
                place.rmdir()
                place = place.parent
        except OSError:
            pass
