"""A private PostgreSQL server in a folder of its own, and pgbench as its load. The version is the installed one, or
another one of `servers.postgresql` by its name."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from servers import FetchError
from servers.postgresql import POSTGRESQL, USER, programs
from servers.room import left, room

NAMES = list(POSTGRESQL)
SETTINGS = "listen_addresses = ''\nshared_buffers = 256MB\nmax_connections = 300\nfsync = off\nlog_min_messages = warning\n"


class PostgresError(Exception):
    """The server or its load could not be started, or failed."""


class PostgresMissing(PostgresError):
    """The server cannot be had here."""


@dataclass
class LoadResult:
    """What pgbench reports at its end."""

    transactions: int
    failed: int
    per_second: float


class Load:
    """A running pgbench."""

    def __init__(self, server: "Server", *words: str):
        self.out = server.folder / "pgbench.out"
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [server.bin / "pgbench", "-h", server.folder, "-n", *words, "bench"],
                stdout=out, stderr=subprocess.STDOUT, preexec_fn=server.enter,
            )

    def is_running(self) -> bool:
        """Returns whether it has not ended."""
        return self.process.poll() is None

    def wait(self) -> LoadResult:
        """Waits for the end. Raises PostgresError if any transaction or connection failed for good."""
        code, text = self.process.wait(), self.out.read_text()

        def number(pattern: str) -> float:
            found = re.search(pattern, text)
            return float(found[1]) if found else -1.0

        if code != 0:
            raise PostgresError(f"pgbench ended with {code}: {text[-2000:]}")
        return LoadResult(
            int(number(r"actually processed: (\d+)")),
            int(number(r"failed transactions: (\d+)")),
            number(r"tps = ([\d.]+)"),
        )

    def seconds(self) -> list[tuple[float, float]]:
        """Returns the reports of `-P 1 --progress-timestamp` so far: the time, and transactions per second since
        the report before."""
        reports = re.findall(r"^progress: ([\d.]+) s, ([\d.]+) tps.*\n", self.out.read_text(), re.MULTILINE)
        return [(float(at), float(tps)) for at, tps in reports]

    def trouble(self) -> list[str]:
        """Returns what it has reported of failures so far: a client that fails ends, the others go on."""
        return [line for line in self.out.read_text().splitlines() if re.search("error|aborted|fatal", line)]

    def end(self) -> None:
        """Ends it at once."""
        if self.is_running():
            self.process.kill()
        self.process.wait()


class Server:
    """A server with the tables of pgbench. `pid` is the postmaster's, the parent of all backends."""

    def __init__(self, name: str = NAMES[0], scale: int = 10):
        try:
            found = programs(name)
        except FetchError as e:
            raise PostgresMissing(str(e)) from None
        self.bin, self.root = found.bin, found.root
        self.folder = Path(tempfile.mkdtemp(prefix="whet-postgres-"))
        # The server refuses to run as root.
        self.enter = room(USER if os.geteuid() == 0 else None, self.root, self.folder)
        self.loads: list[Load] = []
        self.process: subprocess.Popen | None = None
        try:
            self._start(scale)
        except BaseException:
            self.close()
            raise

    def _start(self, scale: int) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER, USER)
        data = self.folder / "data"
        self._run("initdb", "-D", data, "-A", "trust", "-U", USER, "--no-sync", "--locale=C", "-E", "UTF8")
        with (data / "postgresql.conf").open("a") as config:
            config.write(SETTINGS + f"unix_socket_directories = '{self.folder}'\n")
        with self.log().open("w") as log:
            self.process = subprocess.Popen(
                [self.bin / "postgres", "-D", data], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=self.enter,
            )
        limit = time.monotonic() + 60
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise PostgresError(f"the server does not answer: {self.log().read_text()[-2000:]}")
            time.sleep(0.05)
        self._run("createdb", "-h", self.folder, "-U", USER, "bench")
        self._run("pgbench", "-h", self.folder, "-U", USER, "-i", "-q", "-s", str(scale), "bench")

    def _answers(self) -> bool:
        asked = [self.bin / "pg_isready", "-q", "-h", self.folder, "-U", USER, "-d", "template1"]
        return subprocess.run(asked, check=False, preexec_fn=self.enter).returncode == 0

    def _run(self, program: str, *words: object) -> None:
        done = subprocess.run(
            [self.bin / program, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, preexec_fn=self.enter,
        )
        if done.returncode != 0:
            raise PostgresError(f"{program} ended with {done.returncode}: {done.stderr[-2000:]}")

    @property
    def pid(self) -> int:
        """Returns the postmaster's process id, as the first line of its file has it."""
        return int((self.folder / "data/postmaster.pid").read_text().split()[0])

    def log(self) -> Path:
        """Returns the server's log."""
        return self.folder / "log"

    def load(self, *words: str) -> Load:
        """Starts pgbench."""
        load = Load(self, "-U", USER, *words)
        self.loads.append(load)
        return load

    def execute(self, script: str) -> None:
        """Executes a file of SQL, given by its path in the server's folder."""
        self._run("psql", "-h", self.folder, "-U", USER, "-q", "-v", "ON_ERROR_STOP=1", "-f", script, "bench")

    def kill(self) -> None:
        """Kills the postmaster; its backends notice that and end."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Ends all of it and removes the folder."""
        for load in self.loads:
            load.end()
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        left(self.root, self.folder)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
