#!/bin/bash
# The demo: a stock MariaDB under load, optimized while it runs, measured, and put back byte for byte.
# Installs and builds what is missing, then hands over to demo.py. DEMO_PAIRS=50 makes the measurement shorter.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install-missing.sh mariadbd=mariadb-server sysbench=sysbench cc=build-essential python3=python3
if ! command -v cargo >/dev/null; then
    echo "missing: cargo, Rust 1.90 or newer; see https://rustup.rs" >&2
    exit 1
fi
cargo build --release --locked -p whet
exec python3 tools/demo.py
