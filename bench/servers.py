#!/usr/bin/env python3
"""Measures the gain on servers other than databases, and on interpreters, by the lab: redis, memcached, nginx, haproxy,
CPython, Ruby, PHP, SQLite. The versions are the installed ones, or with `--newest` those of Debian unstable.

Prints a table in Markdown: CPU time per unit of work (a request, or a fixed piece of a script) without clones over
that with clones, with 95% intervals. Above 1, CPU is saved. The runs with all measurements are in bench/out.

    bench/servers.py [--newest] [--lab PATH] [--seed N] [SCENARIO...]

A scenario fails alone: the others are measured all the same.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "bench/out"
# Servers spend most of their time in the kernel: that takes longer windows for an interval of user time.
LONG = ["--window", "0.5", "--pairs", "60"]
SCENARIOS = {"redis": LONG, "memcached": LONG, "web": LONG, "interpreters": []}
HEAD = ["server", "load", "clients", "user CPU per unit", "CPU per unit", "A/A control of the run (99%)"]


def run(scenario: str, args: argparse.Namespace) -> dict:
    """Runs a scenario. Returns its figures."""
    folder = OUT / (f"{scenario}-newest" if args.newest else scenario)
    shutil.rmtree(folder, ignore_errors=True)
    words = [scenario, *SCENARIOS[scenario], "--seed", str(args.seed), "--out", str(folder)]
    within = [ROOT / "tools/newest.py", "run"] if args.newest else []
    subprocess.run([*within, args.lab, *words], stdout=sys.stderr, check=True)
    said = subprocess.run([args.lab, "report", folder, "--format", "json"], stdout=subprocess.PIPE, check=True)
    return json.loads(said.stdout)


def ratio(estimate: dict | None) -> str:
    """Formats a ratio with its interval."""
    return "x{value:.3f} ({low:.3f}-{high:.3f})".format(**estimate) if estimate else "-"


def rows(figures: dict) -> list[list[str]]:
    """Returns the rows of a run."""
    control = ratio(figures["control"].get("cpu"))
    return [
        [
            point["step"]["server"],
            point["step"]["load"],
            str(point["step"]["threads"]),
            ratio(point["user_cpu"]),
            ratio(point["cpu_per_query"]),
            control,
        ]
        for point in figures["points"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--newest", action="store_true", help="the versions of Debian unstable")
    parser.add_argument("--lab", type=Path, default=ROOT / "target/release/whet-lab", help="default: the release build")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    args = parser.parse_args()
    if unknown := set(args.scenarios) - set(SCENARIOS):
        parser.error(f"{unknown.pop()} is none of {', '.join(SCENARIOS)}")
    OUT.mkdir(exist_ok=True)
    table, failed = [HEAD, ["---"] * len(HEAD)], 0
    for scenario in args.scenarios or SCENARIOS:
        try:
            table += rows(run(scenario, args))
        except (subprocess.CalledProcessError, OSError) as e:
            failed = 1
            print(f"{scenario}: {e}", file=sys.stderr)
    print("\n".join("| " + " | ".join(cells) + " |" for cells in table))
    return failed


if __name__ == "__main__":
    sys.exit(main())
