#!/bin/bash
# Tests the daemon's metrics, the alert rules and the dashboard with the programs that read them (Debian: apt-get
# install prometheus prometheus-node-exporter). promtool checks the metrics file of a running daemon, the rules,
# and the unit tests of the rules. node_exporter reads the file. Prometheus collects from node_exporter, has the
# types, loads the rules and answers every query of the dashboard.
#
#   tools/test_metrics.sh        the binary is $WHET, target/debug/whet by default; needs no root
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v promtool >/dev/null; then
    echo "skipped: takes promtool (apt-get install prometheus)"
    exit 0
fi
fail() {
    echo "test_metrics: $*" >&2
    exit 1
}
whet=$(realpath "${WHET:-target/debug/whet}")
work=$(mktemp -d)
pids=()
finish() {
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

# Each rule says what to do next and where it is described, and is tested.
python3 - <<'RULES' || fail "see above"
import re
from pathlib import Path

rules = Path("packaging/monitoring/whet-alerts.yml").read_text()
tests = Path("packaging/monitoring/whet-alerts-test.yml").read_text()
runbook = Path("RUNBOOK.md").read_text()
sections = re.findall(r"^#+ (.*)$", runbook, re.M)
names = re.findall(r"- alert: (\w+)", rules)
for name, description in zip(names, re.findall(r'^ +description: "(.*)"$', rules, re.M), strict=True):
    found = re.search(r'Next: .*\. RUNBOOK, \\"(.*)\\"\.$', description)
    assert found and found[1] in sections, f"{name} names no next step, or no section of RUNBOOK.md: {description}"
    assert f"| `{name}` |" in runbook, f"{name} is not in RUNBOOK.md"
    fires = rf"alertname: {name}\n +exp_alerts:\n"
    rests = rf"alertname: {name}\n +exp_alerts: \[\]\n"
    assert re.search(fires, tests) and re.search(rests, tests), f"no test that {name} fires, and one that it does not"
print(f"{len(names)} rules name a next step and a section of the runbook")
RULES
promtool check rules packaging/monitoring/whet-alerts.yml
promtool test rules packaging/monitoring/whet-alerts-test.yml

# A daemon with one target. The quotes in its path must not break the text.
cp "$(command -v perl)" "$work/a \"quoted\" name"
# shellcheck disable=SC2016
"$work/a \"quoted\" name" -e '$x += length($x) while 1' &
pids+=($!)
"$whet" optimize $! --seconds 1 --count 0.2 >/dev/null
cat >"$work/whet.toml" <<TOML
[[target]]
exe = 'a "quoted" name'
[take]
every = "200ms"
# The share of clones comes with each look at whether they still fit.
[reoptimize]
every = "1s"
[paths]
socket = "$work/run/socket"
state = "$work/state"
kill_switch = "$work/off"
metrics = "$work/whet.prom"
TOML
WHET_CONFIG=$work/whet.toml "$whet" start --foreground 2>"$work/log" &
daemon=$!
pids+=("$daemon")
for _ in $(seq 100); do
    grep -qs "^whet_target_state{" "$work/whet.prom" && break
    kill -0 "$daemon" || break
    sleep 0.1
done
if ! grep -q "^whet_target_state{" "$work/whet.prom"; then
    cat "$work/log" >&2
    fail "no metrics of the target"
fi
promtool check metrics <"$work/whet.prom"
echo "$(grep -c -v '^#' "$work/whet.prom") samples pass promtool"

if ! command -v prometheus-node-exporter >/dev/null; then
    echo "skipped: Prometheus; takes node_exporter (apt-get install prometheus-node-exporter)"
    exit 0
fi
# Free ports; another program may still take one before it is used, which fails the test with a message.
read -r exporter_port port < <(python3 - <<'FREE'
import socket

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))
FREE
)
mkdir "$work/textfile"
ln -s "$work/whet.prom" "$work/textfile/whet.prom"
prometheus-node-exporter --collector.disable-defaults --collector.textfile \
    --collector.textfile.directory="$work/textfile" --web.listen-address="127.0.0.1:$exporter_port" 2>"$work/exporter.log" &
pids+=($!)
cat >"$work/prometheus.yml" <<YAML
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [$PWD/packaging/monitoring/whet-alerts.yml]
scrape_configs:
  - job_name: node
    static_configs: [{targets: ["127.0.0.1:$exporter_port"]}]
YAML
prometheus --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" \
    --web.listen-address="127.0.0.1:$port" 2>"$work/prometheus.log" &
pids+=($!)
python3 - "$port" <<'CHECK' || { cat "$work/exporter.log" "$work/prometheus.log" >&2; fail "see above"; }
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

BASE = f"http://127.0.0.1:{sys.argv[1]}/api/v1"


def ask(path: str, **query: str) -> dict:
    """Returns the data of an answer. An invalid query raises an error."""
    with urllib.request.urlopen(f"{BASE}/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)["data"]


def until(what: str, found: callable) -> None:
    """Waits for a condition. While Prometheus starts it refuses connections."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            if found():
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.2)
    sys.exit(f"test_metrics: never came: {what}")


until("the target's state", lambda: ask("query", query="whet_target_state")["result"])
errors = ask("query", query="node_textfile_scrape_error")["result"]
assert [e["value"][1] for e in errors] == ["0"], errors

types = {name: facts[0]["type"] for name, facts in ask("metadata").items() if name.startswith("whet_")}
for name, kind in types.items():
    assert kind == ("counter" if name.endswith("_total") else "gauge"), (name, kind)
assert len(types) > 20, types

until("the alert rules, evaluated", lambda: all(
    rule["health"] == "ok" for group in ask("rules")["groups"] for rule in group["rules"]
) and ask("rules")["groups"])

with open("packaging/monitoring/whet-dashboard.json") as file:
    panels = json.load(file)["panels"]
queries = [t["expr"] for p in panels for q in (p, *p.get("panels", [])) for t in q.get("targets", [])]
assert len(queries) > 20, queries
# Nothing was compared, and nothing refused.
expected = [q for q in queries if not re.search(r"_gain_|_refused\b", q)]
for q in queries:
    ask("query", query=q.replace("$instance", ".*"))
for q in expected:
    until(q, lambda: ask("query", query=q.replace("$instance", ".*"))["result"])
print(f"Prometheus has {len(types)} metrics with their types and answers {len(queries)} queries of the dashboard, "
      f"{len(expected)} of them with values")
CHECK
