#!/usr/bin/env python3
"""Measures the gain on a server under three sysbench loads, with an A/A control for each.

For each load there is a private server with the load on it. `whet optimize` runs, then pairs of short windows
are measured with and without clones (see tools/measure.py for the method). Then a second server starts warm
with the profile of the first. Writes one JSON file with all measurements, and prints two tables in Markdown:
the gains, and what whet did and what it cost.

    bench/run.py [--server NAME] [--pairs N] [--threads N] [--seed N] [--whet PATH] [--json FILE] [LOAD...]

The server is Debian's MariaDB or any other server of tools/servers; bench/loaded.py sets it up.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from loaded import LOADS, loaded  # noqa: E402
from measure import MeasureError, measure  # noqa: E402
from memory import Mapping, mappings  # noqa: E402
from mysql_wire import MysqlError  # noqa: E402
from server import ServerError, exit_on_signals  # noqa: E402
from servers import NAMES, FetchError  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402


def added(before: dict[str, Mapping], after: dict[str, Mapping]) -> int:
    """Returns the bytes of memory that whet added: new mappings that are not writable (as all of whet's
    mappings with content are), and pages of code that are no longer the file's. A server makes neither while
    it works."""
    new = sum(m.anonymous for at, m in after.items() if at not in before and "w" not in m.permissions)
    code = ((m, before[at]) for at, m in after.items() if at in before and "x" in m.permissions)
    return new + sum(now.anonymous - then.anonymous for now, then in code)


def bench(load_name: str, args: argparse.Namespace) -> dict:
    """Measures one load on a server of its own, and a warm start on another server."""
    with tempfile.TemporaryDirectory(prefix="whet-bench-") as folder:
        profile = Path(folder) / "profile"
        with loaded(args.server, load_name, args.threads) as server:
            before = mappings(server.pid)
            optimized = args.whet.run("optimize", server.pid)
            cpu_seconds = args.whet.cpu_seconds
            memory = added(before, mappings(server.pid))
            args.whet.run("profile", "export", server.pid, "-o", profile)
            gain = measure(server.pid, server.socket, pairs=args.pairs, whet=args.whet, seed=args.seed)
            null = measure(server.pid, server.socket, pairs=args.pairs, null=True, seed=args.seed)
        with loaded(args.server, load_name, args.threads) as server:
            warm = args.whet.run("optimize", server.pid, "--profile", profile)
    return {
        "server": args.server,
        "load": load_name,
        "threads": args.threads,
        "optimize": optimized,
        "whet_cpu_seconds": cpu_seconds,
        "added_memory_bytes": memory,
        "warm_start": warm,
        "gain": gain,
        "null": null,
    }


def cell(ratio: dict | None) -> str:
    """Formats a ratio with its interval."""
    return "-" if ratio is None else f"x{ratio['ratio']:.2f} ({ratio['low']:.2f}-{ratio['high']:.2f})"


GAIN = [
    "load", "CPU per query (95% interval)", "user CPU per query", "throughput", "A/A control",
]  # fmt: skip
COST = [
    "load", "optimize", "of it counting", "warm start", "whet's CPU", "whet's peak", "longest stop", "functions", "of user samples",
    "taken branches by counts", "hot pages by counts", "clones", "memory added",
]  # fmt: skip


def gain_row(r: dict) -> list[str]:
    """Returns the row of gains of one load."""
    gain, null = r["gain"], r["null"]
    return [
        r["load"],
        cell(gain["cpu_per_query"]),
        cell(gain["user_cpu_per_query"]),
        cell(gain["throughput"]),
        cell(null["cpu_per_query"]),
    ]


def cost_row(r: dict) -> list[str]:
    """Returns the row of what whet did for one load, and what it cost."""
    o = r["optimize"]
    branches, pages = "-", "-"
    # Without counts there are no such figures.
    if dyno := o.get("dyno"):
        before, after = dyno["before"], dyno["after"]
        branches = f"{after['taken_branches'] / max(1, before['taken_branches']) - 1:+.0%}"
        pages = f"{before['hot_pages']} → {after['hot_pages']}"
    return [
        r["load"],
        f"{o['seconds']:.1f} s",
        f"{(o.get('counting') or {'seconds': 0})['seconds']:.1f} s",
        f"{r['warm_start']['seconds']:.1f} s",
        f"{r['whet_cpu_seconds']:.1f} s",
        f"{o['whet_peak_rss_mb']:.0f} MB",
        f"{o['stop_ms']['max']:.1f} ms",
        str(o["functions"]["cloned"]),
        f"{o['coverage']:.3f}",
        branches,
        pages,
        f"{o['code_bytes'] / 1e6:.2f} MB",
        f"{r['added_memory_bytes'] / 1e6:.1f} MB",
    ]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Formats a table in Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


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
            # Written after each load, so that a later failure loses nothing.
            args.json.write_text(json.dumps(results, indent=1))
            print(f"{load_name}: done", file=sys.stderr, flush=True)
    except (FetchError, MeasureError, MysqlError, ServerError, WhetError, OSError) as e:
        print(f"bench: {e}", file=sys.stderr)
        return 1
    print(table(GAIN, [gain_row(r) for r in results]))
    print()
    print(table(COST, [cost_row(r) for r in results]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
