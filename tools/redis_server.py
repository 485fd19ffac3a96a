"""A private redis server in a folder of its own, and clients that check every answer while it saves its data in
forked children again and again."""

import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from webservers import Missing, WebError

KEYS = 200_000
PIPELINE = 50


class Redis:
    """A running server with some data. `pid` is the parent of the children that save."""

    def __init__(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if not program:
            raise Missing("redis is not installed (Debian: apt-get install redis-server)")
        self.folder = Path(tempfile.mkdtemp(prefix="whet-redis-"))
        words = ["--port", "0", "--unixsocket", self.folder / "socket", "--dir", self.folder, "--save", ""]
        words += ["--enable-debug-command", "yes", "--appendonly", "yes", "--appendfsync", "no"]
        with (self.folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [program, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self.process.pid
        limit = time.monotonic() + 30
        while not (self.folder / "socket").exists():
            if self.process.poll() is not None or time.monotonic() > limit:
                said = (self.folder / "output").read_text()[-500:]
                self.close()
                raise WebError(f"redis does not answer: {said}")
            time.sleep(0.05)
        self.control = Connection(self)
        self.control.call("DEBUG", "POPULATE", KEYS, "key", 100)

    def trouble(self) -> list[str]:
        """Returns what it says of failures."""
        words = ("terminated by signal", "error", "Error", "crashed", "Guru")
        return [line for line in (self.folder / "output").read_text().splitlines() if any(w in line for w in words)]

    def survives_reload(self) -> bool:
        """Lets it save all data and load them again. Returns whether they are the same."""
        before = self.control.call("DEBUG", "DIGEST")
        self.control.call("DEBUG", "RELOAD")
        return before == self.control.call("DEBUG", "DIGEST")

    def close(self) -> None:
        """Ends it and removes its folder."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Redis":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection:
    """A connection that speaks redis's protocol."""

    def __init__(self, server: Redis):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(server.folder / "socket"))
        self.answers = self.socket.makefile("rb")

    def call(self, *words: object) -> bytes:
        """Runs a command. Raises WebError if the answer is an error."""
        return self.call_all([words])[0]

    def call_all(self, commands: list[tuple]) -> list[bytes]:
        """Sends commands at once. Returns the answers."""
        self.socket.sendall(b"".join(map(self._encode, commands)))
        return [self._answer() for _ in commands]

    @staticmethod
    def _encode(words: tuple) -> bytes:
        parts = [str(word).encode() for word in words]
        return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)

    def _answer(self) -> bytes:
        line = self.answers.readline()
        if not line.endswith(b"\r\n") or line[:1] not in b"+:$":
            raise WebError(f"redis answers {line!r}")
        if line[:1] != b"$":
            return line[1:-2]
        body = self.answers.read(int(line[1:]) + 2)
        if len(body) != int(line[1:]) + 2:
            raise WebError("redis has closed a connection")
        return body[:-2]


class SavingClients:
    """Threads that write and read values, and one that lets the server save all of the time."""

    def __init__(self, server: Redis, many: int = 3):
        self.server = server
        self.done = self.saves = 0
        self.failures: list[str] = []
        self.ended = threading.Event()
        bodies = [lambda i=i: self._work(i) for i in range(many)] + [self._save]
        self.threads = [threading.Thread(target=self._guarded, args=(b,), daemon=True) for b in bodies]
        for thread in self.threads:
            thread.start()

    def _guarded(self, body) -> None:
        try:
            body()
        except (OSError, WebError) as e:
            self.failures.append(repr(e))

    def _work(self, number: int) -> None:
        connection, chosen, held = Connection(self.server), random.Random(number), {}
        while not self.ended.is_set():
            # Each thread has keys of its own, whose values it knows.
            keys = [f"{number}:{chosen.randrange(2000)}" for _ in range(PIPELINE)]
            values = [f"{key}={chosen.random()}" for key in keys]
            connection.call_all([("SET", key, value) for key, value in zip(keys, values)])
            held.update(zip(keys, values))
            answers = connection.call_all([("GET", key) for key in keys])
            wrong = [k for k, a in zip(keys, answers) if a != held[k].encode()]
            if wrong:
                self.failures.append(f"the value of {wrong[0]} is not {held[wrong[0]]}")
            self.done += 2 * PIPELINE

    def _save(self) -> None:
        connection = Connection(self.server)
        info = lambda: dict(
            line.split(":", 1) for line in connection.call("INFO", "persistence").decode().split("\r\n") if ":" in line
        )
        while not self.ended.is_set():
            for command in ("BGSAVE", "BGREWRITEAOF"):
                connection.call(command)
                while (now := info())["rdb_bgsave_in_progress"] == "1" or now["aof_rewrite_in_progress"] == "1":
                    time.sleep(0.01)
                states = (now["rdb_last_bgsave_status"], now["aof_last_bgrewrite_status"])
                if states != ("ok", "ok"):
                    self.failures.append(f"after {command}: {states}")
                self.saves += 1

    def end(self) -> None:
        """Ends all of them, after the present save."""
        self.ended.set()
        for thread in self.threads:
            thread.join()
