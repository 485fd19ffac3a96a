#!/usr/bin/env python3
"""Two hosts of a fleet, each in a network namespace without a network, with one folder as the store. Each has a
MariaDB, a daemon and whet-fleet. The first host counts and gives its profile; the second one starts warm from it.

    fleet_hosts_test.py      the binary is $WHET, target/debug/whet by default, with whet-fleet beside it; needs root

Printed, not judged: the time from the load's begin until clones are in force, and the gain that each daemon measured.
The last line is "N passed, N failed".
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from server import Load, Server, exit_on_signals
from whet_daemon import Daemon, own_mariadb

TABLES, ROWS = 4, 20_000
LOAD = "oltp_point_select"
# Seconds. A debug build on a busy machine is slow.
PATIENCE = 300.0
# Seconds for the comparison after a rebuild. On a busy machine it shows nothing.
JUDGING = 60.0
SETTINGS = """
[take]
cpu_percent = 2.0
min_age = "1s"
warm_min_age = "0s"
every = "250ms"
[profile]
sampling = "2s"
counting = "500ms"
[fleet]
keys = ["{key}"]
spool = "{folder}/spool"
"""


class Failed(Exception):
    """Something did not come in time, or a command failed."""


def comes(is_so: Callable[[], object], seconds: float) -> bool:
    """Waits. Returns whether it came in time."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def wait_until(what: str, is_so: Callable[[], object]) -> None:
    """Waits, and raises Failed if it takes too long."""
    if not comes(is_so, PATIENCE):
        raise Failed(f"no {what} after {PATIENCE:.0f} s")


def whet_fleet(program: str, *words: object) -> str:
    """Runs whet-fleet, which must succeed, in a namespace of its own. Returns its output."""
    command = ["unshare", "--net", program, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise Failed(f"whet-fleet {words[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def reported(folder: Path) -> dict:
    """Returns what the daemon reports to whet-fleet of its one build; {} before."""
    try:
        return json.loads((folder / "spool/out/host.json").read_text())["builds"][0]
    except (OSError, ValueError, LookupError):
        return {}


def interfaces() -> list[str]:
    """Returns the names of this process's network interfaces."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return [line.split(":")[0].strip() for line in lines if ":" in line]


def host(folder: Path, program: str, key: str) -> dict:
    """Runs one host: the exchange of profiles, then a load until the daemon has judged. Returns what was seen."""
    mariadb = own_mariadb(folder, "whet-fleet-mariadbd")
    with Server(program=str(mariadb)) as server:
        server.prepare(TABLES, ROWS)
        with Daemon(folder, [mariadb], SETTINGS.format(key=key, folder=folder)) as daemon:
            wait_until("listed build", lambda: reported(folder))
            accepted = whet_fleet(program, "sync", "--config", folder / "whet-fleet.toml")
            if accepted:
                wait_until("profile of the fleet", lambda: reported(folder)["inbox"])
            began = time.monotonic()
            with Load(server.socket, LOAD, 4, None, TABLES, ROWS) as load:
                target: dict = {}

                def is_optimized() -> bool:
                    target.update(next(iter(daemon.targets()), {}))
                    return target.get("state") == "optimized"

                wait_until("clones in force", is_optimized)
                seconds = time.monotonic() - began
                comes(lambda: is_optimized() and "factor" in target, JUDGING)
                outcome = load.finish()
            wait_until("end of the daemon's work", lambda: not daemon.busy())
            if not accepted:
                wait_until("exported profile", lambda: list(folder.glob("spool/out/*.profile")))
                whet_fleet(program, "sync", "--config", folder / "whet-fleet.toml")
            daemon.whet.run("undo", server.pid)
            verified = daemon.whet.run("verify", server.pid)
    return {
        "interfaces": interfaces(),
        "namespace": os.readlink("/proc/self/ns/net"),
        "seconds": round(seconds, 1),
        "started_from": target.get("started_from"),
        "factor": target.get("factor"),
        "reason": target["reason"],
        "clean": outcome.clean_but_for(0),
        "identical": verified["identical"],
    }


def run_host(folder: Path, key: str) -> dict:
    """Runs one host in a network namespace of its own."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, __file__, "--host", str(folder), "--key", key],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        log = folder / "log"
        raise Failed(f"{folder.name} failed; its daemon's log:\n{log.read_text() if log.exists() else ''}")
    return json.loads(done.stdout)


def two_hosts(folder: Path, program: str) -> tuple[dict, dict]:
    """Runs both hosts, one after the other, with a merge in between."""
    key = folder / "key"
    public = whet_fleet(program, "keygen", key).split('"')[1]
    (folder / "store").mkdir()
    hosts = [folder / "one", folder / "two"]
    for home in hosts:
        for part in ("spool/in", "spool/out", "fleet-state"):
            (home / part).mkdir(parents=True)
        home.chmod(0o755)
        (home / "whet-fleet.toml").write_text(
            f"store = 'file://{folder}/store'\nkeys = ['{public}']\nhost = '{home.name}'\n"
            f"spool = '{home}/spool'\nstate = '{home}/fleet-state'\n"
        )
    policy = folder / "policy.json"
    policy.write_text('{"version": 1, "serial": 1, "waves": [100], "step": 0}')
    config = ("--config", hosts[0] / "whet-fleet.toml", "--key", key)
    whet_fleet(program, "policy", "--set", policy, *config)
    first = run_host(hosts[0], public)
    for _ in range(2):
        whet_fleet(program, "merge", *config)
    return first, run_host(hosts[1], public)


def checks(first: dict, second: dict) -> list[tuple[str, bool]]:
    """Lists what must hold."""
    both, own = (first, second), os.readlink("/proc/self/ns/net")
    return [
        ("the hosts have no network but their own loopback", all(h["interfaces"] == ["lo"] for h in both)),
        ("they are not in this program's namespace", all(h["namespace"] != own for h in both)),
        ("the first host counts", first["started_from"] is None),
        ("the second host starts from the fleet's profile", second["started_from"] == "fleet"),
        ("no query failed", all(h["clean"] for h in both)),
        ("after the undo the code is its file's", all(h["identical"] for h in both)),
    ]


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--host", type=Path, help=argparse.SUPPRESS)
    p.add_argument("--key", help=argparse.SUPPRESS)
    args = p.parse_args()
    program = str(Path(os.environ.get("WHET", "target/debug/whet")).resolve().parent / "whet-fleet")
    if args.host:
        print(json.dumps(host(args.host, program, args.key)))
        return 0
    with tempfile.TemporaryDirectory(prefix="whet-fleet-") as name:
        folder = Path(name)
        # Servers run as a user of their own, which must be able to read the program.
        folder.chmod(0o755)
        try:
            first, second = two_hosts(folder, program)
        except Failed as e:
            print(f"fleet_hosts_test: {e}", file=sys.stderr)
            return 1
    failed = 0
    for what, holds in checks(first, second):
        print(f"{'ok    ' if holds else 'FAILED'} {what}")
        failed += not holds
    for name, seen in (("first", first), ("second", second)):
        factor = f"work per CPU second {seen['factor']:.3f} times" if seen["factor"] else seen["reason"]
        print(f"{name} host: clones in force {seen['seconds']} s after the load began; {factor}")
    print(f"{len(checks(first, second)) - failed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
