#!/usr/bin/env python3
"""Draws docs/dashboard.png: what the Grafana dashboard of packaging/monitoring shows of a MariaDB under load.

A private MariaDB runs sysbench, a daemon of whet optimizes it, node_exporter reads the daemon's metrics and Prometheus
collects them. Then each panel's own queries are put to Prometheus, and chromium makes a picture of the page. No
Grafana is needed, and the picture has not Grafana's look.

    WHET=target/release/whet tools/dashboard_picture.py [--minutes 2] [-o docs/dashboard.png]
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from dashboard_page import WIDTH, Line, page
from server import Load, Server, exit_on_signals
from servers.room import die_with_parent
from webservers import free_port
from whet_daemon import Daemon, own_mariadb

ROOT = Path(__file__).resolve().parent.parent
TABLES, ROWS, THREADS = 4, 20_000, 2
QUICK = """
[take]
cpu_percent = 3.0
min_age = "10s"
every = "1s"
[harm]
within = "60s"
[reoptimize]
every = "10s"
"""


class Prometheus:
    """A Prometheus that collects a daemon's metrics every two seconds, by a node_exporter of its own."""

    def __init__(self, folder: Path, stack: ExitStack):
        ports = [free_port(), free_port()]
        self.base = f"http://127.0.0.1:{ports[1]}/api/v1"
        textfile = folder / "textfile"
        textfile.mkdir()
        (textfile / "whet.prom").symlink_to(folder / "metrics")
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
            "scrape_configs": [{
                "job_name": "node",
                "static_configs": [{"targets": [f"127.0.0.1:{ports[0]}"], "labels": {"instance": "db1"}}],
            }],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        commands = [
            ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile",
             f"--collector.textfile.directory={textfile}", f"--web.listen-address=127.0.0.1:{ports[0]}"],
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
             f"--web.listen-address=127.0.0.1:{ports[1]}"],
        ]
        for command in commands:
            process = subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)
            stack.callback(process.wait)
            stack.callback(process.terminate)

    def ask(self, path: str, **query: object) -> list[dict]:
        """Returns the series that an answer has."""
        with urllib.request.urlopen(f"{self.base}/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.load(answer)["data"]["result"]

    def lines(self, panel: dict, begin: float, end: float) -> list[Line]:
        """Returns the answers to a panel's queries: over time, or of the end alone."""
        found = []
        for target in panel["targets"]:
            query = target["expr"].replace("$instance", ".*")
            if not target.get("instant"):
                step = max(1, (end - begin) / 300)
                series = self.ask("query_range", query=query, start=begin, end=end, step=step)
            else:
                series = [s | {"values": [s["value"]]} for s in self.ask("query", query=query, time=end)]
            for one in series:
                values = [(float(at), float(v)) for at, v in one["values"] if v != "NaN"]
                named = re.sub(r"\{\{(\w+)\}\}", lambda m, one=one: one["metric"].get(m[1], ""), target["legendFormat"])
                found += [Line(one["metric"], values, named)] if values else []
        return found


def watched(stack: ExitStack, folder: Path, seconds: float) -> tuple[str, int]:
    """Lets a daemon optimize a MariaDB under load. Returns the page of the dashboard, and its height."""
    program = own_mariadb(folder, "mariadbd")
    server = stack.enter_context(Server(program=str(program)))
    server.prepare(TABLES, ROWS)
    prometheus = Prometheus(folder, stack)
    daemon = stack.enter_context(Daemon(folder, [program], QUICK))
    stack.enter_context(Load(server.socket, "oltp_read_only", THREADS, None, TABLES, ROWS))
    begin = time.time()
    while not daemon.metric("whet_rebuilds_total"):
        if time.time() > begin + 600:
            raise SystemExit(f"the daemon does not optimize the server: {daemon.targets()}")
        time.sleep(1)
    time.sleep(seconds)
    # On a busy host Prometheus misses a time now and then.
    end = max(at for line in prometheus.ask("query_range", query="up == 1", start=begin, end=time.time(), step=1)
              for at, _ in line["values"])
    panels = json.loads((ROOT / "packaging/monitoring/whet-dashboard.json").read_text())["panels"]
    return page([(panel, prometheus.lines(panel, begin, end)) for panel in panels], begin, end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2, help="how long the server is watched after a rebuild")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs/dashboard.png")
    args = parser.parse_args()
    exit_on_signals()
    programs = ("prometheus", "prometheus-node-exporter", "chromium")
    missing = [p for p in programs if not shutil.which(p)]
    if missing:
        print(f"missing: {', '.join(missing)}; tools/setup.sh installs them", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="whet-") as name, ExitStack() as stack:
        folder = Path(name)
        # The server's user must reach its program.
        folder.chmod(0o755)
        text, height = watched(stack, folder, args.minutes * 60)
        (folder / "page.html").write_text(text)
        command = [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            f"--user-data-dir={folder}/browser", f"--window-size={WIDTH},{height}",
            f"--screenshot={args.output.resolve()}", f"file://{folder}/page.html",
        ]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    print(f"{args.output}: {WIDTH} x {height}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
