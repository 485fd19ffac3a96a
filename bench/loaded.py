"""The servers and loads that benchmarks compare: loads of sysbench, on tables that fit in memory."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from server import Load, Server, finish  # noqa: E402

LOADS = ["oltp_point_select", "oltp_read_only", "oltp_read_write"]
READS = {"oltp_point_select", "oltp_read_only"}
TABLES, ROWS = 4, 100_000
WARM_UP = 5.0


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
