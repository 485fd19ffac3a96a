#!/usr/bin/env python3
"""The gain on a server under three sysbench loads, with a run of nothing against nothing beside each.

For each load: a private server, the load on it, `whet optimize`, then pairs of short windows with and without (see
tools/measure.py for the method and why it holds on a noisy machine). Writes one JSON file with everything measured
and prints a table in Markdown.

    bench/run.py [--server NAME] [--pairs N] [--threads N] [--seed N] [--whet PATH] [--json FILE] [LOAD...]

The server is Debian's MariaDB or any other of tools/servers. Where a load writes, each commit is synced and each page
written twice, as in production; the disk is memory, so that the CPU is what limits.
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from measure import MeasureError, measure  # noqa: E402
from mysql_wire import MysqlError  # noqa: E402
from server import Load, Server, ServerError, exit_on_signals  # noqa: E402
from servers import NAMES, FetchError  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

LOADS = ["oltp_point_select", "oltp_read_only", "oltp_read_write"]
READS = {"oltp_point_select", "oltp_read_only"}
TABLES, ROWS = 4, 100_000
WARM_UP = 5.0


def bench(load_name: str, args: argparse.Namespace) -> dict:
    """One load on a server of its own."""
    with Server(args.server, durable=load_name not in READS) as server:
        server.prepare(TABLES, ROWS)
        with Load(server.socket, load_name, args.threads, None, TABLES, ROWS) as load:
            time.sleep(WARM_UP)
            optimized = args.whet.run("optimize", server.pid)
            cpu_seconds = args.whet.cpu_seconds
            gain = measure(server.pid, server.socket, pairs=args.pairs, whet=args.whet, seed=args.seed)
            null = measure(server.pid, server.socket, pairs=args.pairs, null=True, seed=args.seed)
            outcome = load.finish()
        deadlocks = server.deadlocks()
    # A deadlock between two writers is the data's doing; sysbench tries those again.
    failed = max(0, outcome.ignored_errors - deadlocks)
    if outcome.exit_code != 0 or failed or outcome.reconnects or outcome.complaints:
        raise MeasureError(f"{load_name}: a query failed: {outcome}")
    return {
        "server": args.server,
        "load": load_name,
        "threads": args.threads,
        "optimize": optimized,
        "whet_cpu_seconds": cpu_seconds,
        "gain": gain,
        "null": null,
    }


def cell(ratio: dict) -> str:
    """A ratio with its interval."""
    return f"x{ratio['ratio']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


def row(r: dict) -> str:
    """One load's line of the table."""
    gain, null, o = r["gain"], r["null"], r["optimize"]
    return (
        f"| {r['load']} | {cell(gain['cpu_per_query'])} | x{gain['user_cpu_per_query'] or 0:.2f} "
        f"| {cell(gain['throughput'])} | {cell(null['cpu_per_query'])} | {o['seconds']:.1f} s "
        f"| {r['whet_cpu_seconds']:.1f} s | {o['functions']['cloned']} | {o['coverage']:.2f} | {o['stop_ms']['max']:.1f} ms "
        f"| {o['whet_peak_rss_mb']:.0f} MB |"
    )


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--server", choices=NAMES, default=NAMES[0])
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--threads", type=int, default=4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, help="default: bench/out/gain-SERVER.json")
    p.add_argument("loads", nargs="*", default=LOADS)
    args = p.parse_args()
    args.json = args.json or Path(__file__).resolve().parent / "out" / f"gain-{args.server}.json"
    args.whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    results = []
    try:
        for load_name in args.loads:
            results.append(bench(load_name, args))
            # After each, so that a later failure loses nothing.
            args.json.write_text(json.dumps(results, indent=1))
            print(f"{load_name}: done", file=sys.stderr, flush=True)
    except (FetchError, MeasureError, MysqlError, ServerError, WhetError, OSError) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    print("| load | CPU per query (95% interval) | user CPU, pooled | throughput | nothing against nothing | optimize | whet's CPU | cloned | of samples | stop | whet's peak |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in results:
        print(row(r))
    return 0


if __name__ == "__main__":
    sys.exit(main())
