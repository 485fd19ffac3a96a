#!/usr/bin/env python3
"""The second part of the demo: a private server, a load, and whet. All that it starts ends with it.

DEMO_PAIRS: pairs of windows to measure (default 150, about two minutes).
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from measure import MeasureError, measure, table
from mysql_wire import MysqlError
from server import Load, Server, ServerError, exit_on_signals
from whet_cli import Whet, WhetError

TABLES, ROWS, THREADS = 4, 100_000, 8
WARM_UP = 5.0


@contextmanager
def step(what: str) -> Iterator[None]:
    """Prints what happens, and how long it took."""
    print(f"==> {what}", flush=True)
    began = time.monotonic()
    yield
    print(f"    {time.monotonic() - began:.1f} s", flush=True)


def demo(whet: Whet, pairs: int) -> bool:
    """Runs the demo, from a fresh server to a verified undo. Returns whether all went well."""
    with Server() as server:
        with step(f"a private MariaDB (Debian's own binary), pid {server.pid}: {TABLES} tables of {ROWS:,} rows"):
            server.prepare(TABLES, ROWS)
        with Load(server.socket, "oltp_read_only", THREADS, None, TABLES, ROWS) as load:
            with step(f"sysbench oltp_read_only, {THREADS} connections, from now to the end; warming up"):
                time.sleep(WARM_UP)
            with step(f"whet optimize {server.pid}"):
                subprocess.run([whet.path, "optimize", str(server.pid)], check=True)
            with step(f"measuring with and without, {pairs} pairs of windows"):
                result = measure(server.pid, server.socket, pairs=pairs, whet=whet)
            print(table(result), flush=True)
            with step(f"whet undo {server.pid}; whet verify {server.pid}"):
                subprocess.run([whet.path, "undo", str(server.pid)], check=True)
                verified = whet.run("verify", server.pid)
            identical = verified["identical"] and not verified["unexpected"]
            outcome = load.finish()
            if not outcome.clean:
                print(load.text()[-2000:])

    gain = result["cpu_per_query"]
    print(
        f"""
summary
  CPU per query, gain       x{gain['ratio']:.2f} (95% interval {gain['low']:.2f} to {gain['high']:.2f}; 1 is no difference)
  throughput, gain          x{result['throughput']['ratio']:.2f}
  queries during all this   {outcome.queries:,}
  failed queries            {'none' if outcome.clean else 'SOME, see above'}
  code after undo           {'identical to the files' if identical else f'DIFFERS: {verified["unexpected"]}'}"""
    )
    return outcome.clean and identical


def main() -> int:
    exit_on_signals()
    try:
        return 0 if demo(Whet(), int(os.environ.get("DEMO_PAIRS", "150"))) else 1
    except KeyboardInterrupt:
        return 130
    except subprocess.CalledProcessError as e:
        print(f"demo: {' '.join(e.cmd)} ended with {e.returncode}", file=sys.stderr)
    except (MeasureError, MysqlError, ServerError, WhetError, OSError) as e:
        print(f"demo: {e}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
