#!/usr/bin/env python3
"""A private MariaDB or MySQL server for tests, and a sysbench load for it.

The server is Debian's own stripped mariadbd, or another server of tools/servers by its name. It has a new,
throw-away data directory, its own unix socket and no network. Its settings avoid waits for the disk, so that
the load is bound by the CPU. The server and its directory are removed at the end, also after a failure.
Nothing else on the host is changed.

As a module:   with Server() as server: server.prepare(4, 100_000); load = Load(server.socket, "oltp_read_only")
As a command:  server.py fetch [NAME...]           bring servers into the cache ($WHET_SERVERS), all without a name
               server.py run [--server NAME]       start one, print where it is as JSON, end it at a signal
               server.py exec NAME WHAT            become a server, or one of its programs, with the caller's own options
               server.py prepare --socket S        make sysbench's tables
               server.py load --socket S           run sysbench until --seconds are over or a signal comes
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from mysql_wire import Connection, MysqlError
from servers import NAMES, FetchError, UnknownServer, obtain
from servers.room import die_with_parent, entered, left, room

USER = "sbtest"
DATABASE = "sbtest"
# Memory as a disk: there, a server that syncs each commit is bound by the CPU as well.
MEMORY_DISK = "/dev/shm"
NO_DISK = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-doublewrite=0"]
DURABLE = ["--innodb-flush-log-at-trx-commit=1", "--innodb-doublewrite=1"]


class ServerError(Exception):
    """The server or sysbench failed; the text says how and shows their own messages."""


def exit_on_signals() -> None:
    """Makes SIGTERM and SIGHUP end this program as Ctrl-C does: through the context managers, which clean
    up."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)


def tail(path: Path, lines: int = 20) -> str:
    """Returns the last lines of a log, for error messages."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as e:
        return f"({e})"


class Server:
    """One running server. `pid`, `socket` and `error_log` are valid while it runs.

    `durable`: each commit is synced and each page written twice, as in production, on a disk that is memory.
    `program`: another build of the server, which runs in its place.
    """

    def __init__(
        self,
        name: str = "mariadb",
        max_connections: int = 200,
        durable: bool = False,
        program: str | None = None,
    ):
        self.name = name
        self.program = program
        self.max_connections = max_connections
        self.durable = durable
        self.pid = 0
        self.exit_code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Server":
        self.recipe = obtain(self.name)
        # Servers refuse to run as root. Debian's package has a user for them.
        self.user = "mysql" if os.geteuid() == 0 else None
        self.dir = Path(tempfile.mkdtemp(prefix="whet-server-", dir=MEMORY_DISK if self.durable else None))
        self.data = self.dir / "data"
        self.socket = str(self.dir / "server.sock")
        self.error_log = self.dir / "error.log"
        try:
            if self.user:
                shutil.chown(self.dir, self.user, self.user)
            self._create_data()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _child(self, args: list[str], **more: object) -> "subprocess.Popen[bytes]":
        # A process group of its own: a Ctrl-C at the terminal reaches only this program, which ends the
        # server in order.
        return subprocess.Popen(
            args,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.recipe.environment},
            process_group=0,
            preexec_fn=entered(self.user, self.recipe.root, self.dir),
            **more,
        )

    def _create_data(self) -> None:
        if isinstance(self.recipe.create, Path):
            shutil.copytree(self.recipe.create, self.data)
            if self.user:
                for path in [self.data, *self.data.rglob("*")]:
                    shutil.chown(path, self.user, self.user)
            return
        log = self.dir / "install.log"
        with log.open("wb") as out:
            command = [*self.recipe.create, f"--datadir={self.data}", f"--tmpdir={self.dir}"]
            install = self._child(command, stdout=out, stderr=subprocess.STDOUT)
            try:
                code = install.wait(timeout=120)
            except BaseException:
                os.killpg(install.pid, signal.SIGKILL)
                install.wait()
                raise
        if code != 0:
            raise ServerError(f"{self.recipe.create[0]} ended with {code}:\n{tail(log)}")

    def _start(self) -> None:
        self._process = self._child(
            [
                self.program or self.recipe.program,
                "--no-defaults",
                f"--datadir={self.data}",
                f"--tmpdir={self.dir}",
                f"--socket={self.socket}",
                f"--pid-file={self.dir / 'server.pid'}",
                f"--log-error={self.error_log}",
                "--skip-networking",
                "--skip-name-resolve",
                "--skip-log-bin",
                f"--max-connections={self.max_connections}",
                # All data is in memory and nothing waits for the disk, so only CPU work is left.
                "--innodb-buffer-pool-size=256M",
                *(DURABLE if self.durable else NO_DISK),
                # The data is thrown away, so a shutdown need not write it out.
                "--innodb-fast-shutdown=2",
                *self.recipe.options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.pid = self._process.pid
        deadline = time.monotonic() + 60
        while True:
            if not self.alive():
                raise ServerError(f"{self.name} ended at its start:\n{tail(self.error_log)}")
            try:
                with self.connect() as db:
                    db.query(f"CREATE DATABASE {DATABASE}")
                    db.query(f"CREATE USER {USER}@localhost IDENTIFIED BY ''")
                    db.query(f"GRANT ALL ON {DATABASE}.* TO {USER}@localhost")
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise ServerError(f"{self.name} did not open its socket:\n{tail(self.error_log)}") from None
                time.sleep(0.1)

    def connect(self) -> Connection:
        """Opens a session as root."""
        return Connection(self.socket)

    def alive(self) -> bool:
        """Returns whether the server runs."""
        if self._process is not None and self.exit_code is None:
            self.exit_code = self._process.poll()
        return self._process is not None and self.exit_code is None

    def wait(self, timeout: float) -> int | None:
        """Waits for the server to end by itself. Returns its exit code (minus a signal's number), None if it
        has not ended."""
        assert self._process is not None
        try:
            self.exit_code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return self.exit_code

    def shut_down(self, timeout: float = 60) -> int | None:
        """Ends the server with SIGTERM. Returns its exit code, None if it has not ended in time."""
        if self.alive():
            assert self._process is not None
            self._process.terminate()
            self.wait(timeout)
        return self.exit_code

    def stop(self) -> None:
        """Ends the server, by SIGKILL if needed, and removes its directory."""
        try:
            if self.shut_down() is None and self._process is not None:
                self._process.kill()
                self.wait(30)
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)
            left(self.recipe.root, self.dir)
            # The perf map that whet leaves for profilers, which outlives the process.
            Path(f"/tmp/perf-{self.pid}.map").unlink(missing_ok=True)

    def prepare(self, tables: int, rows: int) -> None:
        """Creates sysbench's tables."""
        prepare(self.socket, tables, rows)

    def error_lines(self) -> list[str]:
        """Returns the lines of the error log that no healthy run writes."""
        text = self.error_log.read_text(errors="replace")
        return [line for line in text.splitlines() if "[ERROR]" in line or "got signal" in line]

    def deadlocks(self) -> int:
        """Returns how many deadlocks between transactions the server has ended so far."""
        if self.recipe.deadlocks is None:
            return self.error_log.read_text(errors="replace").count("*** WE ROLL BACK TRANSACTION")
        with self.connect() as db:
            return int(db.query(self.recipe.deadlocks)[0][0] or 0)


def sysbench_command(socket: str, test: str, tables: int, rows: int, threads: int) -> list[str]:
    """Returns sysbench's arguments up to its command."""
    return [
        "sysbench",
        test,
        "--db-driver=mysql",
        f"--mysql-socket={socket}",
        f"--mysql-user={USER}",
        f"--mysql-db={DATABASE}",
        f"--tables={tables}",
        f"--table-size={rows}",
        f"--threads={threads}",
    ]


def prepare(socket: str, tables: int, rows: int) -> None:
    """Creates sysbench's tables on the server at `socket`."""
    threads = min(tables, os.cpu_count() or 1)
    command = sysbench_command(socket, "oltp_read_only", tables, rows, threads) + ["prepare"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise ServerError(f"sysbench prepare ended with {done.returncode}:\n{done.stdout}{done.stderr}")


@dataclass
class LoadResult:
    """The work of a load, and its errors."""

    exit_code: int
    seconds: float
    queries: int
    ignored_errors: int
    reconnects: int
    complaints: list[str]

    @property
    def clean(self) -> bool:
        """Returns whether no query failed and no connection was lost."""
        return self.clean_but_for(0)

    def clean_but_for(self, deadlocks: int) -> bool:
        """As `clean`, apart from this number of deadlocks: they come from the data, and sysbench retries such
        transactions."""
        failed = self.ignored_errors > deadlocks or self.reconnects > 0 or bool(self.complaints)
        return self.exit_code == 0 and not failed


INTERVAL = re.compile(r"^\[ \d+s \].* qps: ([\d.]+) .* err/s: ([\d.]+) reconn/s: ([\d.]+)", re.M)


def figure(text: str, name: str) -> int | None:
    """Returns a total of sysbench's closing report."""
    found = re.search(rf"^\s+{name}:\s+(\d+)", text, re.M)
    return int(found[1]) if found else None


class Load:
    """sysbench in the background, with a report each second."""

    # sysbench needs a time limit; this one is longer than any use of it.
    FOREVER = 24 * 3600

    def __init__(
        self,
        socket: str,
        test: str,
        threads: int = 8,
        seconds: int | None = None,
        tables: int = 4,
        rows: int = 100_000,
    ):
        self._bounded = seconds is not None
        # A file instead of a pipe, which would have to be read while the load runs.
        self._output = tempfile.TemporaryFile("w+", prefix="whet-sysbench-")
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            sysbench_command(socket, test, tables, rows, threads)
            + [f"--time={seconds or self.FOREVER}", "--report-interval=1", "run"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=die_with_parent,
        )

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        if self.running():
            self._process.kill()
            self._process.wait()
        self._output.close()

    @property
    def pid(self) -> int:
        """Returns the pid of sysbench."""
        return self._process.pid

    def running(self) -> bool:
        """Returns whether sysbench runs. It ends by itself at the first query that fails for good."""
        return self._process.poll() is None

    def text(self) -> str:
        """Returns the output of sysbench so far."""
        self._output.seek(0)
        return self._output.read()

    def finish(self) -> LoadResult:
        """Returns the result: a load with an end is waited for, a load without an end is ended now."""
        if self._bounded:
            code = self._process.wait()
        elif self.running():
            # One whole interval passes after the caller's last action, so that the report has its errors.
            time.sleep(1.5)
            ended_early = not self.running()
            self._process.terminate()
            code = self._process.wait()
            code = code if ended_early else 0
        else:
            code = self._process.returncode or 1
        return self._result(code)

    def _result(self, code: int) -> LoadResult:
        text = self.text()
        intervals = [tuple(map(float, found)) for found in INTERVAL.findall(text)]
        queries, errors, reconnects = (sum(column) for column in zip(*intervals)) if intervals else (0.0, 0.0, 0.0)
        # The closing report is exact, if there is one. The last interval is often only a part of a second.
        total = re.search(r"^\s+total:\s+(\d+)", text, re.M)
        return LoadResult(
            exit_code=code,
            seconds=round(time.monotonic() - self._began, 1),
            queries=int(total[1]) if total else round(queries),
            ignored_errors=figure(text, "ignored errors") or round(errors),
            reconnects=figure(text, "reconnects") or round(reconnects),
            complaints=[line for line in text.splitlines() if line.startswith(("FATAL", "ALERT"))],
        )


def finish(load: Load, server: Server) -> LoadResult:
    """Ends the only load that a server has had. Raises ServerError if a query failed."""
    result = load.finish()
    if not result.clean_but_for(server.deadlocks()):
        raise ServerError(f"a query failed: {result}")
    return result


def run_command(options: argparse.Namespace) -> int:
    """`server.py run`"""
    with Server(options.server) as server:
        print(
            json.dumps({"pid": server.pid, "socket": server.socket, "error_log": str(server.error_log)}),
            flush=True,
        )
        while server.alive():
            time.sleep(0.2)
        raise ServerError(f"{server.name} ended with {server.exit_code}:\n{tail(server.error_log)}")


def fetch_command(options: argparse.Namespace) -> int:
    """`server.py fetch`: prints each server. If a server cannot be obtained, the others are fetched all the
    same."""
    missing = 0
    for name in options.names or NAMES:
        try:
            print(f"{name}: {obtain(name).program}", flush=True)
        except UnknownServer:
            raise
        except (FetchError, OSError) as e:
            missing += 1
            print(f"{name}: cannot be had: {e}", file=sys.stderr)
    return 1 if missing else 0


def exec_command(options: argparse.Namespace) -> int:
    """`server.py exec`: becomes the server's process with the same pid, so the caller can watch and end it.
    The server runs as the calling user, on `data` in the first folder."""
    recipe = obtain(options.name)
    folders = [folder.absolute() for folder in options.folder]
    data = folders[0] / "data"
    places = [f"--datadir={data}", f"--tmpdir={folders[0]}"]
    if options.what == "forget":
        left(recipe.root, *folders)
        return 0
    if options.what == "version":
        words = [recipe.program, "--no-defaults", "--version"]
    elif options.what == "serve":
        words = [recipe.program, "--no-defaults", *places, *recipe.options]
    elif isinstance(recipe.create, Path):
        shutil.copytree(recipe.create, data)
        return 0
    else:
        words = [*recipe.create, *places]
    room(None, recipe.root, *folders)()
    os.execvpe(words[0], [*words, *options.more], {**os.environ, **recipe.environment})


def prepare_command(options: argparse.Namespace) -> int:
    """`server.py prepare`"""
    prepare(options.socket, options.tables, options.rows)
    return 0


def load_command(options: argparse.Namespace) -> int:
    """`server.py load`"""
    with Load(options.socket, options.test, options.threads, options.seconds, options.tables, options.rows) as load:
        try:
            while load.running():
                time.sleep(0.2)
        except (KeyboardInterrupt, SystemExit):
            # The signal ends the load. Its result is still reported.
            pass
        result = load.finish()
        if not result.clean:
            print(load.text(), file=sys.stderr)
    print(json.dumps(asdict(result)))
    return 0 if result.clean else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="a private server for tests, and a sysbench load for it")
    commands = parser.add_subparsers(required=True)

    run = commands.add_parser("run", help="start a server, print its pid and socket, end it at a signal")
    run.set_defaults(act=run_command)
    run.add_argument("--server", choices=NAMES, default=NAMES[0])
    fetch = commands.add_parser("fetch", help="bring servers into the cache")
    fetch.set_defaults(act=fetch_command)
    fetch.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))

    become = commands.add_parser("exec", help="become a server's program")
    become.set_defaults(act=exec_command)
    become.add_argument("name", metavar="NAME", help=", ".join(NAMES))
    become.add_argument(
        "what",
        choices=("version", "create", "serve", "forget"),
        help="say its version; make its data folder; run; remove what this has left in the server's own root",
    )
    become.add_argument(
        "--folder", type=Path, action="append", required=True, help="where it works; more that it is to see"
    )
    become.epilog = "What follows -- goes to the program as it is."

    for name, act in (("prepare", prepare_command), ("load", load_command)):
        command = commands.add_parser(name)
        command.set_defaults(act=act)
        command.add_argument("--socket", required=True)
        command.add_argument("--tables", type=int, default=4)
        command.add_argument("--rows", type=int, default=100_000)
        if name == "load":
            command.add_argument("--test", default="oltp_read_only")
            command.add_argument("--threads", type=int, default=8)
            command.add_argument("--seconds", type=int, help="default: until a signal comes")

    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    options.more = words[end + 1 :]
    exit_on_signals()
    try:
        return options.act(options)
    except KeyboardInterrupt:
        return 130
    except UnknownServer as e:
        print(f"server.py: {e}", file=sys.stderr)
        return 2
    except (FetchError, ServerError, MysqlError, OSError) as e:
        print(f"server.py: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
