#!/usr/bin/env python3
"""Measures what each pass gains: a build with all passes against a build without this pass, as two
generations in one server: MariaDB, MySQL, or one backend of PostgreSQL, whose work is counted by its system
calls.

Each round has a server of its own, profiled once. All builds use this profile. A build without one pass, and
the build with all passes, are compared by `whet measure --between`: pairs of short windows in random order,
between which one stop puts the other generation in force. The figure is the work per CPU second of the build
with all passes, divided by that of the build without the pass: more than 1 means that the pass helps. "A/A"
compares two builds with all passes: they differ in their addresses alone, so this is the error of the method.

The table also has figures from exact counts, which have no noise: the change that the pass makes to executed
instructions, taken branches, calls, returns and indirect branches, and to the number of hot cache lines and
pages.

    bench/passes.py [--server NAME] [--load LOAD] [--pairs N] [--rounds N] [--seed N] [--json FILE] [PASS...]

A thousand pairs take eight minutes and show a difference of 1%. The default of 300 pairs takes two and a half
for each pass and round.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from loaded import LOADS, POSTGRES, loaded, loaded_backend  # noqa: E402
from mysql_wire import MysqlError  # noqa: E402
from postgres import PostgresError  # noqa: E402
from run import table  # noqa: E402
from server import ServerError, exit_on_signals  # noqa: E402
from servers import NAMES, FetchError  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

PASSES = [
    "blocks", "split", "functions", "loops", "inlining", "side-exits", "guards", "stubs", "calls", "tables",
    "libraries", "huge-pages", "anonymous-memory",
]  # fmt: skip
# Clones are either in anonymous memory, the default, or in files.
WITHOUT = {"anonymous-memory": ["--code-cache", "file"]}
CONTROL = "A/A"
COUNTS = ["instructions", "taken_branches", "calls", "returns", "indirect_calls", "indirect_jumps", "hot_lines", "hot_pages"]
# A window, the pause before it and a stop, in seconds. A comparison has two windows for each pair.
WINDOW, OVERHEAD = 0.2, 0.06


@dataclass
class Comparison:
    """One build without a pass against the build with all passes, in one server."""

    left_out: str
    ratio: float
    low: float
    high: float
    pairs: int
    stop_ms: float
    # Executed events and hot places in the clones of the build without the pass, and of the other.
    without: dict[str, int]
    whole: dict[str, int]


@contextmanager
def busy(args: argparse.Namespace) -> Iterator[tuple[int, list]]:
    """Yields a process under the load, and the words by which `whet measure` counts its work."""
    if args.server == POSTGRES:
        with loaded_backend() as pid:
            yield pid, []
    else:
        with loaded(args.server, args.load, args.threads) as server:
            yield server.pid, ["--mysql-socket", server.socket]


def build(whet: Whet, pid: int, profile: Path, left_out: str | None) -> tuple[int, dict[str, int]]:
    """Builds a generation by a profile. Returns its number and the counts of its clones."""
    words = WITHOUT.get(left_out, ["--without", left_out]) if left_out else []
    answer = whet.run("optimize", pid, "--profile", profile, *words)
    if answer["dyno"] is None:
        raise WhetError("nothing was rebuilt by the profile")
    return answer["generation"], answer["dyno"]["after"]


def compare(args: argparse.Namespace, target: tuple, whole: tuple, other: tuple, name: str, seed: int) -> Comparison:
    """Compares two generations: how much more work the first does for the same CPU time."""
    pid, counted = target
    words = ["--between", other[0], whole[0], "--rounds", args.pairs, "--window", WINDOW, "--seed", seed]
    limit = 60 + 2 * args.pairs * (WINDOW + OVERHEAD) * 2
    # Exit code 7 says that the interval is wide. It is a result too.
    code, answer, errors = args.whet.try_run("measure", pid, *counted, *words, timeout=limit)
    factor = answer.get("combined_improvement_factor")
    if code not in (0, 7) or not factor:
        raise WhetError(f"the comparison ended with {code}: {errors.strip() or json.dumps(answer)[:2000]}")
    stop = answer["stop_ms"]["median"]
    return Comparison(name, factor["value"], factor["low"], factor["high"], answer["pairs"], stop, other[1], whole[1])


def one_round(number: int, args: argparse.Namespace, rng: random.Random) -> list[Comparison]:
    """Compares all builds of a round."""
    names = [CONTROL, *args.passes]
    rng.shuffle(names)
    found = []
    with tempfile.TemporaryDirectory(prefix="whet-passes-") as folder, busy(args) as target:
        profile, pid = Path(folder) / "profile", target[0]
        args.whet.run("optimize", pid)
        args.whet.run("profile", "export", pid, "-o", profile)
        for name in names:
            # Both are built anew for each comparison, in random order, so that age and place favour no side.
            order = [None, name if name != CONTROL else None]
            swap = rng.random() < 0.5
            builds = [build(args.whet, pid, profile, left_out) for left_out in (order[::-1] if swap else order)]
            whole, other = builds[::-1] if swap else builds
            one = compare(args, target, whole, other, name, rng.randrange(1 << 32))
            found.append(one)
            print(
                f"round {number}, {name}: x{one.ratio:.4f} ({one.low:.4f}-{one.high:.4f}), {one.pairs} pairs",
                file=sys.stderr,
                flush=True,
            )
    return found


def row(name: str, rounds: list[list[Comparison]]) -> list[str]:
    """Returns the row of one pass: medians over rounds."""
    of_it = [c for one in rounds for c in one if c.left_out == name]

    def change(key: str) -> str:
        ratios = [c.whole[key] / c.without[key] for c in of_it if c.without[key]]
        return f"{median(ratios) - 1:+.1%}" if ratios else "none"

    ratio, low, high = (median(getattr(c, key) for c in of_it) for key in ("ratio", "low", "high"))
    return [name, f"x{ratio:.3f} ({low:.3f}-{high:.3f})", *map(change, COUNTS)]


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--server", choices=[*NAMES, POSTGRES], default=NAMES[0])
    p.add_argument("--load", default="oltp_point_select", choices=LOADS, help="for PostgreSQL always select-only")
    p.add_argument("--pairs", type=int, default=300)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--threads", type=int, default=4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, help="default: bench/out/passes-SERVER.json")
    p.add_argument("passes", nargs="*", default=PASSES, metavar="PASS", help="default: each")
    args = p.parse_args()
    args.json = args.json or Path(__file__).resolve().parent / "out" / f"passes-{args.server}.json"
    args.whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    load = "select-only" if args.server == POSTGRES else args.load
    rng = random.Random(args.seed)
    rounds: list[list[Comparison]] = []
    try:
        for number in range(1, args.rounds + 1):
            rounds.append(one_round(number, args, rng))
            kept = [[asdict(c) for c in one] for one in rounds]
            args.json.write_text(json.dumps({"server": args.server, "load": load, "rounds": kept}, indent=1))
    except (FetchError, MysqlError, PostgresError, ServerError, WhetError, OSError) as e:
        print(f"passes: {e}", file=sys.stderr)
        return 1
    print(f"{args.server}, {load}: work per CPU second with the pass / without it; and what the pass changes by the counts")
    print(table(["pass", "gain (95% interval)", *(c.replace("_", " ") for c in COUNTS)], [row(n, rounds) for n in [CONTROL, *args.passes]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
