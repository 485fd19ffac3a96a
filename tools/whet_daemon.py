"""A whet daemon for tests and benchmarks, separate from any daemon of the host."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from measure import cpu_clock
from servers.room import die_with_parent
from whet_cli import Whet

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


class Daemon:
    """A daemon with its own configuration: these programs, these settings, and all its files in `folder`."""

    def __init__(self, folder: Path, programs: list[Path], settings: str = ""):
        self.folder = folder
        targets = "".join(f'[[target]]\nexe = "{p}"\n' for p in programs)
        (folder / "whet.toml").write_text(
            f'{targets}[paths]\nsocket = "{folder}/run/socket"\nstate = "{folder}/state"\nkill_switch = "{folder}/off"\n'
            f'metrics = "{folder}/metrics"\n{settings}'
        )
        os.environ["WHET_CONFIG"] = str(folder / "whet.toml")
        self.whet = Whet()
        self.log = folder / "log"

    def __enter__(self) -> "Daemon":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.whet.path, "start", "--foreground"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                preexec_fn=as_its_unit_does,
            )
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def is_well(self) -> bool:
        """Returns whether the daemon runs and no worker of it has crashed."""
        return self.process.poll() is None and self.metric("whet_workers_crashed_total") == 0

    def busy(self) -> bool:
        """Returns whether the daemon works on a target now."""
        return any(t["state"] not in ("watching", "optimized", "undone", "refused", "lost") for t in self.targets())

    def targets(self) -> list[dict]:
        """Returns what the daemon reports of each of its targets."""
        return self.whet.run("status").get("daemon", {}).get("targets", [])

    def end(self) -> int | None:
        """Ends the daemon with SIGTERM, so that it finishes its present work in order. Returns its exit
        code."""
        self.process.terminate()
        return self.process.wait(60)

    def metric(self, name: str) -> float:
        """Returns one of the daemon's metrics; 0 if there is none yet."""
        try:
            found = re.search(rf"^{name} (\S+)$", (self.folder / "metrics").read_text(), re.M)
        except FileNotFoundError:
            return 0.0
        return float(found[1]) if found else 0.0

    def size(self) -> tuple[int, int, int, int]:
        """Returns the daemon's resident bytes, open files, threads, and ended children that were not waited
        for."""
        proc = Path(f"/proc/{self.process.pid}")
        resident = int((proc / "statm").read_text().split()[1]) * PAGE
        zombies = [c for c in children(self.process.pid) if state(c) == "Z"]
        return resident, len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir())), len(zombies)

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of the daemon and of its workers that have ended."""
        ended = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[13:15]
        return cpu_clock(self.process.pid) + sum(map(int, ended)) / TICK


def as_its_unit_does() -> None:
    """Gives a process the priority of `packaging/whet.service`, if it may have it. It ends with its parent."""
    die_with_parent()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -5)
    except PermissionError:
        pass


def own_mariadb(folder: Path, name: str) -> Path:
    """Copies Debian's server under a name that no other process has, to a folder that the server's user can
    read."""
    program = folder / name
    shutil.copy("/usr/sbin/mariadbd", program)
    program.chmod(0o755)
    return program


def children(pid: int) -> list[int]:
    """Returns the children of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread, and the whole process, may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, task.read_text().split())
    return found


def state(pid: int) -> str:
    """Returns the state of a process as a letter, as ps does; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
