"""The servers and loads that benchmarks compare: loads of sysbench, on tables that fit in memory."""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from postgres import PostgresError  # noqa: E402
from postgres import Server as Postgres  # noqa: E402
from server import Load, Server, finish  # noqa: E402
from whet_daemon import children  # noqa: E402

LOADS = ["oltp_point_select", "oltp_read_only", "oltp_read_write"]
READS = {"oltp_point_select", "oltp_read_only"}
TABLES, ROWS = 4, 100_000
WARM_UP = 5.0
POSTGRES = "postgresql"


@contextmanager
def loaded(name: str, load_name: str, threads: int) -> Iterator[Server]:
    """Yields a server of its own under a warm load. Raises ServerError at the end if a query failed. If the
    load writes, each commit is synced and each page written twice, as in production. The disk is memory, so
    that the CPU is the limit."""
    with Server(name, durable=load_name not in READS) as server:
        server.prepare(TABLES, ROWS)
        with Load(server.socket, load_name, threads, None, TABLES, ROWS) as load:
            time.sleep(WARM_UP)
            yield server
            finish(load, server)


def pin(client: int, server: Iterable[int]) -> None:
    """Binds a client and the processes of its server each to a CPU of its own. Otherwise chance decides for a server's
    life which threads share a CPU, which makes 10% of difference between two servers of one kind."""
    for_client, for_server, *_ = sorted(os.sched_getaffinity(0))
    for pid, cpu in [(client, for_client), *((pid, for_server) for pid in server)]:
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), {cpu})


def command_line(pid: int) -> str:
    """Returns the command line of a process; of one that has ended nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@contextmanager
def loaded_backend() -> Iterator[int]:
    """Yields the one backend of a PostgreSQL server of its own, which serves select-only transactions of one
    connection. Raises PostgresError if the load fails."""
    with Postgres() as server:
        load = server.load("-S", "-M", "prepared", "-c", "1", "-j", "1", "-T", "36000")
        time.sleep(WARM_UP)
        backends = [pid for pid in children(server.pid) if "[local]" in command_line(pid)]
        if len(backends) != 1:
            raise PostgresError(f"one backend is expected, and there are {len(backends)}")
        yield backends[0]
        if not load.is_running() or load.trouble():
            raise PostgresError(f"pgbench failed: {load.trouble()}")
