"""Web servers of several processes, each private in a folder of its own, and clients that make requests all the
time: nginx, apache (prefork), php-fpm behind nginx, haproxy, gunicorn, puma."""

import contextlib
import gzip
import http.client
import io
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from web_kinds import FRONTS, KINDS, PAGE, WORKERS, Kind
from whet_daemon import children, state

HTTP = b"GET /page/hello HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"


class WebError(Exception):
    """A server could not be started, or does not do what it should."""


class Missing(WebError):
    """A server is not installed."""


class WrongAnswer(Exception):
    """An answer is cut short, or does not say that the request succeeded."""


class _Received:
    """Bytes that http.client reads as if from a socket."""

    def __init__(self, data: bytes):
        self.data = data

    def makefile(self, *_: object) -> io.BytesIO:
        return io.BytesIO(self.data)


def http_body(answer: bytes) -> bytes:
    """Returns the body of an answer by HTTP, without compression."""
    try:
        response = http.client.HTTPResponse(_Received(answer))
        response.begin()
        body = response.read()
        # Without a length nothing shows the end of the body.
        if response.status != 200 or not (response.chunked or response.getheader("Content-Length")):
            raise WrongAnswer(repr(answer[:200]))
        return gzip.decompress(body) if response.getheader("Content-Encoding") == "gzip" else body
    except (http.client.HTTPException, OSError, EOFError) as e:
        raise WrongAnswer(f"{e!r}: {answer[:200]!r}") from e


class Clients:
    """Threads that make one request after the other, each with a connection of its own. Each answer must be that
    to the first request of all."""

    def __init__(self, server: "Web", many: int = 8):
        self.server = server
        self.done = 0
        self.failures: list[str] = []
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(many)]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        while not self.ended.is_set():
            try:
                if (body := self.server.ask()) != self.server.expected:
                    self.failures.append(f"wrong: {body[:200]!r}")
            except (OSError, WrongAnswer) as e:
                self.failures.append(f"{time.strftime('%T')} {e!r}")
                # A server that has ended would fail without end.
                time.sleep(0.1)
            self.done += 1

    def end(self) -> None:
        """Ends all clients."""
        self.ended.set()
        for thread in self.threads:
            thread.join()


class Web:
    """A running server. `pid` is the parent of its workers. `program` replaces the kind's own program. `upstream` is
    the folder of the server to which it passes requests on. `front` is the server that passes requests on to it."""

    def __init__(self, name: str, program: Path | None = None, upstream: Path | None = None):
        self.name = name
        self.kind = FRONTS[name] if upstream else KINDS[name]
        self.front: Web | None = None
        found = program or self.program(self.kind)
        self.folder = Path(tempfile.mkdtemp(prefix=f"whet-{self.kind.program}-"))
        os.chmod(self.folder, 0o755)
        self.port = free_port() if self.kind.by_port else 0
        config = self.folder / "server.conf"
        user = "root" if os.geteuid() == 0 else "nobody"
        daemon = "on" if self.kind.detached else "off"
        values = {"folder": self.folder, "workers": WORKERS, "user": user, "port": self.port}
        config.write_text(self.kind.config.format(**values, daemon=daemon, upstream=upstream))
        for file, text in {"hello.txt": PAGE, **self.kind.files}.items():
            (self.folder / file).write_text(text)
        words = [word.format(config=config, folder=self.folder) for word in self.kind.words]
        with (self.folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [found, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self.process.pid
        if self.kind.detached:
            self.process.wait()
            self._until(lambda: self._pid_in_file(), "write its process id")
            self.pid = self._pid_in_file()
        self.session = self.pid
        if self.kind.behind:
            self._until((self.folder / "socket").exists, "listen")
            self.front = Web(self.kind.behind, upstream=self.folder)
        self.expected = self._first_answer() if not upstream else b""

    @staticmethod
    def program(kind: Kind) -> Path:
        """Returns the installed program of a kind."""
        found = shutil.which(kind.program, path=os.environ.get("PATH", "") + ":/usr/sbin")
        if not found:
            raise Missing(f"{kind.program} is not installed (Debian: apt-get install {kind.package})")
        return Path(found)

    def _first_answer(self) -> bytes:
        limit = time.monotonic() + 30
        while True:
            try:
                answer = self.ask()
                if len(self.workers()) == self.many():
                    return answer
                error: Exception | str = f"it has {len(self.workers())} workers"
            except (OSError, WrongAnswer) as e:
                error = e
            if not self.is_running() or time.monotonic() > limit:
                said = (self.folder / "output").read_text()[-500:]
                self.close()
                raise WebError(f"{self.name} does not answer: {error} {said}")
            time.sleep(0.05)

    def _until(self, holds: Callable[[], object], what: str) -> None:
        limit = time.monotonic() + 120
        while not holds():
            if time.monotonic() > limit:
                raise WebError(f"{self.name} does not {what}")
            time.sleep(0.05)

    def _pid_in_file(self) -> int:
        try:
            return int((self.folder / "pid").read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def is_running(self) -> bool:
        """Returns whether the parent of its workers has not ended."""
        return (self.kind.detached or self.process.poll() is None) and state(self.pid) not in ("", "Z")

    def families(self) -> "list[Web]":
        """Returns it, and the server before it."""
        return [self, self.front] if self.front else [self]

    def many(self) -> int:
        """Returns how many workers it has."""
        return 1 if self.kind.by_worker else WORKERS

    def members(self) -> int:
        """Returns how many processes its family has beside the parent: a worker that is a family of its own has none."""
        return 0 if self.kind.by_worker else WORKERS

    def family(self) -> int:
        """Returns the parent of the family that serves requests now."""
        return max(self.workers()) if self.kind.by_worker else self.pid

    def ask(self) -> bytes:
        """Makes a request, and returns the body of the answer."""
        with (self.front or self).connect() as connection:
            connection.settimeout(30)
            connection.sendall(HTTP)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        return http_body(answer)

    def connect(self) -> socket.socket:
        """Returns a new connection."""
        if self.port:
            return socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection = socket.socket(socket.AF_UNIX)
        # The queue of a socket in a folder may be full for a moment.
        while (error := connection.connect_ex(str(self.folder / "socket"))) == 11:
            time.sleep(0.001)
        if error:
            connection.close()
            raise OSError(error, os.strerror(error))
        return connection

    def workers(self) -> set[int]:
        """Returns the process ids of its children."""
        return set(children(self.pid))

    def reload(self) -> None:
        """Lets it start new workers, and waits for the end of the old ones."""
        if self.kind.detached:
            self.retire(self.upgrade())
            return
        old = self.workers()
        os.kill(self.pid, self.kind.reload)
        self._until(lambda: not self.workers() & old and len(self.workers()) >= len(old), "replace its workers")

    def upgrade(self) -> int:
        """Begins a binary upgrade: a new parent with workers of its own serves requests beside the old one. Returns
        the old one."""
        old = self.pid
        os.kill(old, signal.SIGUSR2)
        self._until(lambda: self._pid_in_file() not in (0, old), "start a new parent")
        self.pid = self._pid_in_file()
        self._until(lambda: len(self.workers()) == self.many(), "start new workers")
        return old

    def retire(self, old: int) -> None:
        """Ends a binary upgrade: first the old parent's workers end, then the old parent."""
        os.kill(old, signal.SIGWINCH)
        self._until(lambda: set(children(old)) <= {self.pid}, "end its old workers")
        os.kill(old, signal.SIGQUIT)
        self._until(lambda: state(old) in ("", "Z"), "end its old parent")

    def kill(self) -> None:
        """Kills the parent of its workers."""
        os.kill(self.pid, signal.SIGKILL)
        if not self.kind.detached:
            self.process.wait()
        self._until(lambda: state(self.pid) in ("", "Z"), "end")

    def trouble(self) -> list[str]:
        """Returns what it says of failures."""
        words = (
            "[alert]", "[crit]", "[emerg]", "signal 11", "SIGSEGV", "core dumped", "Segmentation", "ALERT", "CRITICAL",
            "Traceback", "[BUG]", "Terminating timed out worker",
        )
        logs = [each.folder / name for each in self.families() for name in ("error.log", "output")]
        text = "".join(p.read_text() for p in logs if p.exists())
        return [line for line in text.splitlines() if any(word in line for word in words)]

    def close(self) -> None:
        """Ends it and removes its folder."""
        if self.front:
            self.front.close()
        if self.is_running():
            os.kill(self.pid, signal.SIGTERM)
            try:
                self._until(lambda: not self.is_running(), "end")
            except WebError:
                self.kill()
        # Of a parent that was killed, workers may be left: they are in its session.
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and session(int(entry.name)) == self.session:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(entry.name), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Web":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def session(pid: int) -> int:
    """Returns the session of a process; 0 if there is no such process."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def free_port() -> int:
    """Returns a port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
