#!/bin/bash
# Tests the daemon's metrics and the alert rules with promtool (Debian: apt-get install prometheus): the metrics
# file of a running daemon, the rules, and the unit tests of the rules.
#
#   tools/test_metrics.sh        the binary is $WHET, target/debug/whet by default; needs no root
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v promtool >/dev/null; then
    echo "skipped: takes promtool (apt-get install prometheus)"
    exit 0
fi
whet=$(realpath "${WHET:-target/debug/whet}")
work=$(mktemp -d)
daemon=
target=
finish() {
    for pid in $daemon $target; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap finish EXIT

promtool check rules packaging/monitoring/whet-alerts.yml
promtool test rules packaging/monitoring/whet-alerts-test.yml

# A daemon with one target. The quotes in its path must not break the text.
cp "$(command -v sleep)" "$work/a \"quoted\" name"
"$work/a \"quoted\" name" 600 &
target=$!
cat >"$work/whet.toml" <<TOML
[[target]]
exe = 'a "quoted" name'
[take]
every = "200ms"
[paths]
socket = "$work/run/socket"
state = "$work/state"
kill_switch = "$work/off"
metrics = "$work/whet.prom"
TOML
WHET_CONFIG=$work/whet.toml "$whet" start --foreground 2>"$work/log" &
daemon=$!
for _ in $(seq 100); do
    grep -qs "^whet_target_state{" "$work/whet.prom" && break
    kill -0 "$daemon" || break
    sleep 0.1
done
if ! grep -q "^whet_target_state{" "$work/whet.prom"; then
    cat "$work/log" >&2
    echo "test_metrics: no metrics of the target" >&2
    exit 1
fi
promtool check metrics <"$work/whet.prom"
echo "$(grep -c -v '^#' "$work/whet.prom") samples are as promtool wants them"
