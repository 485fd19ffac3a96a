"""Web servers of several processes, each private in a folder of its own, and clients that make requests all the
time: nginx, apache (prefork), php-fpm."""

import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

WORKERS = 4
PAGE = "".join(f"line {i} of a page\n" for i in range(400))

NGINX = """\
daemon off;
worker_processes {workers};
pid {folder}/pid;
error_log {folder}/error.log notice;
user {user};
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  gzip on;
  gzip_min_length 100;
  gzip_types text/plain;
  server {{
    listen unix:{folder}/socket;
    root {folder};
    types {{ text/plain txt; }}
    rewrite ^/page/(.*)$ /$1.txt;
  }}
}}
"""
APACHE = """\
ServerRoot {folder}
ServerName test
PidFile {folder}/pid
ErrorLog {folder}/error.log
Listen 127.0.0.1:{port}
LoadModule mpm_prefork_module /usr/lib/apache2/modules/mod_mpm_prefork.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
LoadModule filter_module /usr/lib/apache2/modules/mod_filter.so
LoadModule deflate_module /usr/lib/apache2/modules/mod_deflate.so
LoadModule rewrite_module /usr/lib/apache2/modules/mod_rewrite.so
StartServers {workers}
MinSpareServers 1
MaxSpareServers {workers}
MaxRequestWorkers {workers}
TypesConfig /etc/mime.types
DocumentRoot {folder}
<Directory {folder}>
  Require all granted
</Directory>
SetOutputFilter DEFLATE
RewriteEngine on
RewriteRule ^/page/(.*)$ /$1.txt
"""
PHP = """\
[global]
error_log = {folder}/error.log
daemonize = no
process_control_timeout = 30s
[www]
listen = {folder}/socket
listen.backlog = 512
pm = static
pm.max_children = {workers}
"""
SCRIPT = """\
<?php
$words = [];
for ($i = 0; $i < 300; $i++) { $words["key$i"] = md5("word $i") . strrev((string)$i); }
ksort($words);
echo strlen(implode(",", $words)), "\\n", preg_match_all('/[a-f]{2}/', implode(" ", $words)), "\\n";
"""
HTTP = b"GET /page/hello HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n"


def fast_cgi(script: str) -> bytes:
    """Returns a request for a script by FastCGI."""
    variables = {"SCRIPT_FILENAME": script, "REQUEST_METHOD": "GET", "QUERY_STRING": "", "SERVER_PROTOCOL": "HTTP/1.1"}
    params = b"".join(struct.pack(">BB", len(k), len(v)) + k.encode() + v.encode() for k, v in variables.items())
    records = [(1, struct.pack(">HB5x", 1, 0)), (4, params), (4, b""), (5, b"")]
    return b"".join(struct.pack(">BBHHxx", 1, kind, 1, len(body)) + body for kind, body in records)


@dataclass
class Kind:
    """How one kind of server is started and reloaded. `keeps` says whether its parent lives on after a reload."""

    program: str
    words: list[str]
    config: str
    reload: signal.Signals
    keeps: bool = True
    by_port: bool = False


KINDS = {
    "nginx": Kind("nginx", ["-c", "{config}", "-e", "{folder}/error.log"], NGINX, signal.SIGHUP),
    "apache": Kind("apache2", ["-f", "{config}", "-DFOREGROUND"], APACHE, signal.SIGUSR1, by_port=True),
    # The master executes itself anew.
    "php-fpm": Kind("php-fpm8.2", ["-n", "-R", "-y", "{config}", "-F"], PHP, signal.SIGUSR2, keeps=False),
}


class WebError(Exception):
    """A server is not installed, or could not be started."""


class Clients:
    """Threads that make one request after the other, each with a connection of its own."""

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
                with self.server.connect() as connection:
                    connection.settimeout(30)
                    connection.sendall(self.server.request)
                    answer = b"".join(iter(lambda: connection.recv(65536), b""))
            except OSError as e:
                self.failures.append(str(e))
                continue
            if not self.server.is_whole(answer):
                self.failures.append(repr(answer[:60]))
            self.done += 1

    def end(self) -> None:
        """Ends all clients."""
        self.ended.set()
        for thread in self.threads:
            thread.join()


class Web:
    """A running server. `pid` is the parent's."""

    def __init__(self, name: str):
        self.kind = KINDS[name]
        program = shutil.which(self.kind.program, path=os.environ.get("PATH", "") + ":/usr/sbin")
        if not program:
            raise WebError(f"{name} is not installed")
        self.folder = Path(tempfile.mkdtemp(prefix=f"whet-{name}-"))
        os.chmod(self.folder, 0o755)
        self.port = free_port() if self.kind.by_port else 0
        config = self.folder / "server.conf"
        user = "root" if os.geteuid() == 0 else "nobody"
        config.write_text(self.kind.config.format(folder=self.folder, workers=WORKERS, user=user, port=self.port))
        (self.folder / "hello.txt").write_text(PAGE)
        (self.folder / "hello.php").write_text(SCRIPT)
        self.is_php = name == "php-fpm"
        self.request = fast_cgi(f"{self.folder}/hello.php") if self.is_php else HTTP
        words = [word.format(config=config, folder=self.folder) for word in self.kind.words]
        with (self.folder / "output").open("w") as output:
            self.process = subprocess.Popen(
                [program, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self.pid = self.process.pid
        limit = time.monotonic() + 30
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                said = (self.folder / "output").read_text()[-500:]
                self.close()
                raise WebError(f"{name} does not answer: {said}")
            time.sleep(0.05)

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

    def is_whole(self, answer: bytes) -> bool:
        """Returns whether an answer has its end, and says that the request succeeded."""
        if self.is_php:
            # The last record ends the request, with the status 0.
            return b"\r\n\r\n" in answer and answer[-16:-14] == b"\x01\x03" and answer[-8:-3] == bytes(5)
        chunked = b"chunked" in answer[:1000]
        return answer.startswith(b"HTTP/1.1 200 ") and (not chunked or answer.endswith(b"\r\n0\r\n\r\n"))

    def _answers(self) -> bool:
        try:
            with self.connect():
                return True
        except OSError:
            return False

    def workers(self) -> set[int]:
        """Returns the process ids of its children."""
        return {int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()}

    def reload(self) -> None:
        """Lets it start new workers, and waits for the end of the old ones."""
        old = self.workers()
        os.kill(self.pid, self.kind.reload)
        limit = time.monotonic() + 60
        while self.workers() & old or len(self.workers()) < len(old):
            if time.monotonic() > limit:
                raise WebError("old workers do not end")
            time.sleep(0.05)

    def trouble(self) -> list[str]:
        """Returns what it says of failures."""
        words = ("[alert]", "[crit]", "[emerg]", "signal 11", "SIGSEGV", "core dumped", "Segmentation", "ALERT:")
        text = "".join(p.read_text() for p in (self.folder / "error.log", self.folder / "output") if p.exists())
        return [line for line in text.splitlines() if any(word in line for word in words)]

    def close(self) -> None:
        """Ends it and removes its folder."""
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Web":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def free_port() -> int:
    """Returns a port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
