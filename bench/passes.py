#!/usr/bin/env python3
"""Measures the share that each pass has in the gain: builds with all passes and with all but one, on the same
server under the same load.

Each round has a server of its own, profiled once. By this profile the server is rebuilt again and again, each
time with one other pass left out, in random order. Each rebuild is compared with the original code by pairs
of windows (see tools/measure.py). A gain is user CPU per query without clones over user CPU per query with
clones, over all windows: no pass changes the kernel's part. A pass's share is the gain with all passes over
the gain without this pass, within each round; more than 1 means that the pass helps. The build with all
passes is made twice a round, and shares use both builds together. "nothing" is the share of one of these
builds in the other, which only the place of a layout can cause. Shares do not multiply up to the whole: one
pass may do what another leaves undone. Beside the share stands what `whet explain` reports of each build by
the counts, without noise: taken branches, instructions, indirect calls and calls through the PLT in the
clones, compared with the same functions' originals, and the numbers of hot cache lines and pages.

    bench/passes.py [--server NAME] [--load LOAD] [--pairs N] [--rounds N] [--seed N] [--json FILE] [PASS...]
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from loaded import LOADS, loaded  # noqa: E402
from measure import MeasureError, Window, measure, user_gain, whole_pairs  # noqa: E402
from mysql_wire import MysqlError  # noqa: E402
from run import table  # noqa: E402
from server import ServerError, exit_on_signals  # noqa: E402
from servers import NAMES, FetchError  # noqa: E402
from whet_cli import Whet, WhetError  # noqa: E402

PASSES = [
    "blocks", "split", "functions", "loops", "in-place", "side-exits", "guards", "stubs", "calls", "words",
    "libraries", "huge-pages",
]  # fmt: skip
ALL, AGAIN = "all", "nothing"
RESAMPLES = 2000

Pair = dict[str, Window]


@dataclass
class Build:
    """A build with one pass left out: its windows, and its executed events before and after, by the
    counts."""

    pairs: list[Pair]
    before: dict[str, int]
    after: dict[str, int]


def one_round(number: int, args: argparse.Namespace, rng: random.Random) -> dict[str, Build]:
    """Returns the builds of a round, by the pass that was left out."""
    left_out = [ALL, AGAIN, *args.passes]
    rng.shuffle(left_out)
    builds: dict[str, Build] = {}
    with tempfile.TemporaryDirectory(prefix="whet-passes-") as folder, loaded(args.server, args.load, args.threads) as server:
        profile = Path(folder) / "profile"
        args.whet.run("optimize", server.pid)
        args.whet.run("profile", "export", server.pid, "-o", profile)
        for name in left_out:
            without = [] if name in (ALL, AGAIN) else ["--without", name]
            dyno = args.whet.run("optimize", server.pid, "--profile", profile, *without)["dyno"]
            if dyno is None:
                raise WhetError("nothing was rebuilt by the profile")
            result = measure(server.pid, server.socket, pairs=args.pairs, whet=args.whet, seed=rng.randrange(1 << 32))
            pairs = whole_pairs([Window(**w) for w in result["windows"]])
            builds[name] = Build(pairs, dyno["before"], dyno["after"])
            print(f"round {number}, without {name}: x{user_gain(pairs):.3f}", file=sys.stderr, flush=True)
    return builds


def share(rounds: list[dict[str, Build]], name: str, rng: random.Random) -> dict:
    """Returns the median over rounds of the ratio of two gains, with a 95% interval: rounds are drawn, then
    pairs in each."""

    def of_round(one: dict[str, Build], draw: Callable[[list[Pair]], list[Pair]]) -> float:
        whole = one[ALL].pairs + ([] if name == AGAIN else one[AGAIN].pairs)
        return user_gain(draw(whole)) / user_gain(draw(one[name].pairs))

    def resampled() -> float:
        drawn = rng.choices(rounds, k=len(rounds))
        return median(of_round(r, lambda some: rng.choices(some, k=len(some))) for r in drawn)

    samples = sorted(resampled() for _ in range(RESAMPLES))
    tail = RESAMPLES // 40
    point = median(of_round(r, lambda some: some) for r in rounds)
    return {"ratio": point, "low": samples[tail], "high": samples[-tail - 1]}


def executed(rounds: list[dict[str, Build]], name: str) -> list[str]:
    """Returns the executed events of a build: changes against the originals, and what is hot; medians over
    rounds."""

    def change(key: str) -> str:
        ratios = [r[name].after[key] / r[name].before[key] for r in rounds if r[name].before[key]]
        return f"{median(ratios) - 1:+.1%}" if ratios else "none"

    changes = map(change, ["taken_branches", "instructions", "indirect_calls", "plt_calls"])
    return [*changes, *(f"{median(r[name].after[key] for r in rounds):.0f}" for key in ("hot_lines", "hot_pages"))]


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--server", choices=NAMES, default=NAMES[0])
    p.add_argument("--load", default="oltp_point_select", choices=LOADS)
    p.add_argument("--pairs", type=int, default=40)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--whet", type=Whet, default=None)
    p.add_argument("--json", type=Path, help="default: bench/out/passes-SERVER.json")
    p.add_argument("passes", nargs="*", default=PASSES, metavar="PASS", help="default: each")
    args = p.parse_args()
    args.json = args.json or Path(__file__).resolve().parent / "out" / f"passes-{args.server}.json"
    args.whet = args.whet or Whet()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    rounds: list[dict[str, Build]] = []
    try:
        for number in range(1, args.rounds + 1):
            rounds.append(one_round(number, args, rng))
            kept = [{name: asdict(build) for name, build in one.items()} for one in rounds]
            args.json.write_text(json.dumps({"server": args.server, "load": args.load, "rounds": kept}, indent=1))
    except (FetchError, MeasureError, MysqlError, ServerError, WhetError, OSError) as e:
        print(f"passes: {e}", file=sys.stderr)
        return 1
    print(f"{args.server}, {args.load}: user CPU per query, without whet / with")
    rows = []
    for name in [ALL, AGAIN, *args.passes]:
        whole = median(user_gain(r[name].pairs) for r in rounds)
        of_it = share(rounds, name, rng)
        told = "" if name == ALL else f"x{of_it['ratio']:.3f} ({of_it['low']:.3f}-{of_it['high']:.3f})"
        rows.append([name, f"x{whole:.3f}", told, *executed(rounds, name)])
    head = ["built without", "gain", "the pass's share (95% interval)"]
    print(table([*head, "taken branches", "instructions", "indirect calls", "PLT calls", "hot lines", "hot pages"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
