"""Web servers of several processes, each private in a folder of its own, and clients that make requests all the
time: nginx, apache (prefork), php-fpm, haproxy, gunicorn, puma."""

import contextlib
import gzip
import http.client
import io
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from web_kinds import KINDS, PAGE, WORKERS

HTTP = b"GET /page/hello HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"


class WebError(Exception):
    """A server could not be started, or does not do what it should."""


class Missing(WebError):
    """A server is not installed."""


class WrongAnswer(Exception):
    """An answer is cut short, or does not say that the request succeeded."""


def fast_cgi(script: str) -> bytes:
    """Returns a request for a script by FastCGI."""
    variables = {"SCRIPT_FILENAME": script, "REQUEST_METHOD": "GET", "QUERY_STRING": "", "SERVER_PROTOCOL": "HTTP/1.1"}
    params = b"".join(struct.pack(">BB", len(k), len(v)) + k.encode() + v.encode() for k, v in variables.items())
    records = [(1, struct.pack(">HB5x", 1, 0)), (4, params), (4, b""), (5, b"")]
    return b"".join(struct.pack(">BBHHxx", 1, kind, 1, len(body)) + body for kind, body in records)


def fast_cgi_body(answer: bytes) -> bytes:
    """Returns the body of an answer by FastCGI."""
    output, at, ended = b"", 0, False
    while at + 8 <= len(answer):
        _, kind, _, length, padding = struct.unpack_from(">BBHHB", answer, at)
        content = answer[at + 8 : at + 8 + length]
        output += content if kind == 6 else b""
        # The last record ends the request, with the status 0.
        ended = kind == 3 and content[:5] == bytes(5)
        at += 8 + length + padding
    head, end, body = output.partition(b"\r\n\r\n")
    if not ended or not end or b"Status:" in head:
        raise WrongAnswer(repr(answer[:200]))
    return body


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
    """A running server. `pid` is the process that was started. `program` replaces the kind's own program."""

    def __init__(self, name: str, program: Path | None = None):
        self.name = name
        self.kind = KINDS[name]
        found = program or self.program(name)
        self.folder = Path(tempfile.mkdtemp(prefix=f"whet-{name}-"))
        os.chmod(self.folder, 0o755)
        self.port = free_port() if self.kind.by_port else 0
        config = self.folder / "server.conf"
        user = "root" if os.geteuid() == 0 else "nobody"
        config.write_text(self.kind.config.format(folder=self.folder, workers=WORKERS, user=user, port=self.port))
        for file, text in {"hello.txt": PAGE, **self.kind.files}.items():
            (self.folder / file).write_text(text)
        self.is_php = name == "php-fpm"
        self.request = fast_cgi(f"{self.folder}/hello.php") if self.is_php else HTTP
        words = [word.format(config=config, folder=self.folder) for word in self.kind.words]
        with (self.folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [found, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self.process.pid
        self.expected = self._first_answer()

    @staticmethod
    def program(name: str) -> Path:
        """Returns the installed program of a kind."""
        kind = KINDS[name]
        found = shutil.which(kind.program, path=os.environ.get("PATH", "") + ":/usr/sbin")
        if not found:
            raise Missing(f"{name} is not installed (Debian: apt-get install {kind.package})")
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
            if self.process.poll() is not None or time.monotonic() > limit:
                said = (self.folder / "output").read_text()[-500:]
                self.close()
                raise WebError(f"{self.name} does not answer: {error} {said}")
            time.sleep(0.05)

    def many(self) -> int:
        """Returns how many workers it has."""
        return 1 if self.kind.by_worker else WORKERS

    def family(self) -> int:
        """Returns the parent of the family that serves requests now."""
        return max(self.workers()) if self.kind.by_worker else self.pid

    def ask(self) -> bytes:
        """Makes a request, and returns the body of the answer."""
        with self.connect() as connection:
            connection.settimeout(30)
            connection.sendall(self.request)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        return fast_cgi_body(answer) if self.is_php else http_body(answer)

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
        try:
            return {int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()}
        except FileNotFoundError:
            return set()

    def reload(self) -> None:
        """Lets it start new workers, and waits for the end of the old ones."""
        old = self.workers()
        os.kill(self.pid, self.kind.reload)
        limit = time.monotonic() + 120
        while self.workers() & old or len(self.workers()) < len(old):
            if time.monotonic() > limit:
                raise WebError("old workers do not end")
            time.sleep(0.05)

    def kill(self) -> set[int]:
        """Kills the process that was started. Returns its former workers."""
        workers = self.workers()
        self.process.kill()
        self.process.wait()
        return workers

    def trouble(self) -> list[str]:
        """Returns what it says of failures."""
        words = (
            "[alert]", "[crit]", "[emerg]", "signal 11", "SIGSEGV", "core dumped", "Segmentation", "ALERT", "CRITICAL",
            "Traceback", "[BUG]", "Terminating timed out worker",
        )
        text = "".join(p.read_text() for p in (self.folder / "error.log", self.folder / "output") if p.exists())
        return [line for line in text.splitlines() if any(word in line for word in words)]

    def close(self) -> None:
        """Ends it and removes its folder."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        # Of a parent that was killed, workers may be left: they are in its session.
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and session(int(entry.name)) == self.pid:
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
