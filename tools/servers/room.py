"""The surroundings of a server process: its user, its root directory, and its end with the program that
started it."""

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
    """Makes a new child end with this program, even if this program is killed by SIGKILL."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def mount(source: str, target: str, flags: int) -> None:
    """Calls mount(2) for an existing folder."""
    if LIBC.mount(source.encode(), target.encode(), None, flags, None) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {source} on {target}: {os.strerror(number)}")


def private_mounts() -> None:
    """Makes mounts of this process visible to it and its children alone."""
    if LIBC.unshare(CLONE_NEWNS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    mount("none", "/", MS_REC | MS_PRIVATE)


def usr_of(root: Path) -> None:
    """Puts the /usr of `root` in the place of the machine's, for this process and its children. As in Debian's, /bin and
    /lib are links into it."""
    private_mounts()
    mount(str(root / "usr"), "/usr", MS_BIND)


def room(user: str | None, root: Path | None, *folders: Path) -> Callable[[], None]:
    """Returns a function that a process calls before it becomes the server. The process works in the first of
    `folders`. In another root, all folders have the same names as outside. The mounts for that are visible to
    this process alone, and end with it."""
    account = pwd.getpwnam(user) if user else None
    if root is not None:
        for name in ("dev", "proc", *(str(folder).lstrip("/") for folder in folders)):
            (root / name).mkdir(parents=True, exist_ok=True)

    def enter() -> None:
        if root is not None:
            private_mounts()
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
    """Returns a function that a new child calls before it becomes the server: `room`, then
    `die_with_parent`."""
    enter = room(user, root, folder)

    def enter_and_stay_bound() -> None:
        enter()
        # This must come last: the kernel clears the death signal when the user changes.
        die_with_parent()

    return enter_and_stay_bound


def left(root: Path | None, *folders: Path) -> None:
    """Removes what servers left in `root`: perf maps of whet's whose processes have ended, and the empty folders on
    which `folders` were mounted, with the empty folders above them."""
    for perf_map in root.glob("tmp/perf-*.map") if root is not None else ():
        if not Path("/proc", perf_map.stem.removeprefix("perf-")).exists():
            perf_map.unlink(missing_ok=True)
    for place in (root / str(folder).lstrip("/") for folder in folders if root is not None):
        try:
            # Entries of the root itself belong to the server.
            while place.parent != root:
                place.rmdir()
                place = place.parent
        except OSError:
            pass
