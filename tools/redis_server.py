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
        self.program = program
        self.folder = Path(tempfile.mkdtemp(prefix="whet-redis-"))
        self.start()
        self.control.call("DEBUG", "POPULATE", KEYS, "key", 100)

    def start(self) -> None:
        """Starts the server, and waits until it has loaded the data of its folder."""
        words = ["--port", "0", "--unixsocket", self.folder / "socket", "--dir", self.folder, "--save", ""]
        words += ["--enable-debug-command", "yes", "--appendonly", "yes", "--appendfsync", "no"]
        with (self.folder / "output").open("a") as output:
            self.process = subprocess.Popen(
                [self.program, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self.process.pid
        limit = time.monotonic() + 60
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                said = (self.folder / "output").read_text()[-500:]
                self.close()
                raise WebError(f"redis does not answer: {said}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            self.control = Connection(self)
            self.control.call("PING")
        except (OSError, WebError):
            # It does not listen yet, or still loads its data.
            return False
        return True

    def kill(self) -> None:
        """Kills the server. A child that saves ends when it reports its progress."""
        self.process.kill()
        self.process.wait()

    def save_slowly(self) -> None:
        """Saves all data, and makes each later save take 20 seconds or more."""
        self.control.call("BGREWRITEAOF")
        while is_saving(persistence(self.control)):
            time.sleep(0.01)
        self.control.call("CONFIG", "SET", "rdb-key-save-delay", 100)

    def lost(self, expected: dict[str, set[str]]) -> list[str]:
        """Returns what is not right in its data: the values that clients wrote, and those that it had before."""
        keys = [*expected, *(f"key:{i}" for i in range(KEYS))]
        wrong = []
        for at in range(0, len(keys), 1000):
            some = keys[at : at + 1000]
            for key, answer in zip(some, self.control.call_all([("GET", key) for key in some])):
                value = answer.decode().rstrip("\0")
                if value not in expected.get(key, {key.replace("key", "value")}):
                    wrong.append(f"{key}={value}")
        return wrong

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
        if line == b"$-1\r\n":
            return b""
        if not line.endswith(b"\r\n") or line[:1] not in b"+:$":
            raise WebError(f"redis answers {line!r}")
        if line[:1] != b"$":
            return line[1:-2]
        body = self.answers.read(int(line[1:]) + 2)
        if len(body) != int(line[1:]) + 2:
            raise WebError("redis has closed a connection")
        return body[:-2]


def persistence(connection: Connection) -> dict[str, str]:
    """Returns what a server reports of its saves."""
    text = connection.call("INFO", "persistence").decode()
    return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


def is_saving(reported: dict[str, str]) -> bool:
    """Returns whether a child of the server saves its data."""
    return "1" in (reported["rdb_bgsave_in_progress"], reported["aof_rewrite_in_progress"])


class SavingClients:
    """Threads that write and read values, and one that lets the server save all of the time. `expected` has the
    values that each key may have now: those that the server has not confirmed may be there or not."""

    def __init__(self, server: Redis, many: int = 3):
        self.server = server
        self.done = self.saves = 0
        self.expected: dict[str, set[str]] = {}
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
        connection, chosen = Connection(self.server), random.Random(number)
        while not self.ended.is_set():
            # Each thread has keys of its own, whose values it knows.
            keys = [f"{number}:{chosen.randrange(2000)}" for _ in range(PIPELINE)]
            values = [f"{key}={chosen.random()}" for key in keys]
            for key, value in zip(keys, values):
                self.expected.setdefault(key, {""}).add(value)
            connection.call_all([("SET", key, value) for key, value in zip(keys, values)])
            self.expected.update((key, {value}) for key, value in zip(keys, values))
            answers = connection.call_all([("GET", key) for key in keys])
            wrong = [k for k, a in zip(keys, answers) if a.decode() not in self.expected[k]]
            if wrong:
                self.failures.append(f"the value of {wrong[0]} is not {self.expected[wrong[0]]}")
            self.done += 2 * PIPELINE

    def _save(self) -> None:
        connection = Connection(self.server)
        while not self.ended.is_set():
            for command in ("BGSAVE", "BGREWRITEAOF"):
                connection.call(command)
                while is_saving(now := persistence(connection)):
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
