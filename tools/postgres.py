"""A private PostgreSQL server in a folder of its own, and pgbench as its load. The version is the installed one, or
another one of `servers.postgresql` by its name."""

import contextlib
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

    def acknowledged(self) -> int:
        """Waits for the end, in order or not. Returns the number of transactions that the server has confirmed."""
        self.process.wait()
        found = re.search(r"actually processed: (\d+)", text := self.out.read_text())
        if not found:
            raise PostgresError(f"pgbench does not say how much it did: {text[-2000:]}")
        return int(found[1])

    def trouble(self) -> list[str]:
        """Returns what it has reported of failures so far: a client that fails ends, the others go on."""
        return [line for line in self.out.read_text().splitlines() if re.search("error|aborted|fatal", line)]

    def end(self) -> None:
        """Ends it at once."""
        if self.is_running():
            self.process.kill()
        self.process.wait()


class Server:
    """A server with the tables of pgbench. `pid` is the postmaster's, the parent of all backends. `program` replaces
    the installed program of the server; `settings` are further lines of its configuration."""

    def __init__(self, name: str = NAMES[0], scale: int = 10, program: Path | None = None, settings: str = ""):
        try:
            found = programs(name)
        except FetchError as e:
            raise PostgresMissing(str(e)) from None
        self.bin, self.root = found.bin, found.root
        self.program = program or self.bin / "postgres"
        self.folder = Path(tempfile.mkdtemp(prefix="whet-postgres-"))
        # The server refuses to run as root.
        self.enter = room(USER if os.geteuid() == 0 else None, self.root, self.folder)
        self.accounts = scale * 100_000
        self.settings = settings
        self.loads: list[Load] = []
        self.clients: list[subprocess.Popen] = []
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
            config.write(SETTINGS + f"unix_socket_directories = '{self.folder}'\n" + self.settings)
        self.start()
        self._run("createdb", "-h", self.folder, "-U", USER, "bench")
        self._run("pgbench", "-h", self.folder, "-U", USER, "-i", "-q", "-s", str(scale), "bench")

    def start(self) -> None:
        """Starts the postmaster, and waits until it answers."""
        self.log().touch()
        if os.geteuid() == 0:
            # pg_ctl opens it as the server's user.
            shutil.chown(self.log(), USER, USER)
        with self.log().open("a") as log:
            self.process = subprocess.Popen(
                [self.program, "-D", self.folder / "data"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=self.enter,
            )
        limit = time.monotonic() + 60
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                raise PostgresError(f"the server does not answer: {self.log().read_text()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        asked = [self.bin / "pg_isready", "-q", "-h", self.folder, "-U", USER, "-d", "template1"]
        return subprocess.run(asked, check=False, preexec_fn=self.enter).returncode == 0

    def _run(self, program: str, *words: object) -> str:
        done = subprocess.run(
            [self.bin / program, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, preexec_fn=self.enter,
        )
        if done.returncode != 0:
            raise PostgresError(f"{program} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

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

    def ask(self, query: str) -> list[str]:
        """Runs a query. Returns the values of its first row as text."""
        words = ["-h", self.folder, "-U", USER, "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", query, "bench"]
        return self._run("psql", *words).split("\n", maxsplit=1)[0].split("|")

    def loop(self) -> int:
        """Starts a statement that never ends and never looks whether its postmaster lives. Returns its process id."""
        loop = "do 'begin loop null; end loop; end'"
        self.clients.append(subprocess.Popen(
            [self.bin / "psql", "-h", self.folder, "-U", USER, "-c", loop, "bench"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=self.enter,
        ))
        limit = time.monotonic() + 60
        while not (pid := self.ask("select pid from pg_stat_activity where query like 'do %'")[0]):
            if time.monotonic() > limit:
                raise PostgresError("the statement that never ends does not begin")
            time.sleep(0.05)
        return int(pid)

    def books(self) -> tuple[bool, int]:
        """Returns whether the balances of accounts, tellers and branches each are the sum of the history, and no
        account is missing; and the length of the history."""
        sums = [f"(select sum({t[0]}balance) from pgbench_{t})" for t in ("accounts", "tellers", "branches")]
        rows = "(select count(*) from pgbench_accounts)"
        query = f"select {', '.join(sums)}, coalesce(sum(delta), 0), {rows}, count(*) from pgbench_history"
        *balances, accounts, length = map(int, self.ask(query))
        return len(set(balances)) == 1 and accounts == self.accounts, length

    def kill(self) -> None:
        """Kills the postmaster; its backends notice that and end."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        """Ends the postmaster and starts another by pg_ctl, which is no child of this program."""
        self._run("pg_ctl", "restart", "-D", self.folder / "data", "-m", "fast", "-l", self.log())
        if self.process:
            self.process.wait()
        self.process = None

    def restart_after_kill(self, backends: set[int]) -> None:
        """Starts a server that was killed. Those of its backends that have not ended are killed first: as long as
        one lives, the data cannot be used again."""
        for client in self.clients:
            client.kill()
            client.wait()
        self.clients.clear()
        limit = time.monotonic() + 60
        while living := [pid for pid in backends if Path(f"/proc/{pid}/exe").exists()]:
            for pid in living if time.monotonic() > limit - 58 else []:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > limit:
                raise PostgresError(f"processes of the server do not end: {living}")
            time.sleep(0.05)
        self.start()

    def close(self) -> None:
        """Ends all of it and removes the folder."""
        for load in self.loads:
            load.end()
        for client in self.clients:
            client.kill()
            client.wait()
        if self.process is None and (self.folder / "data/postmaster.pid").exists():
            with contextlib.suppress(PostgresError):
                self._run("pg_ctl", "stop", "-D", self.folder / "data", "-m", "immediate")
        elif self.process and self.process.poll() is None:
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
