#!/bin/bash
# The demo: a stock MariaDB under load is optimized while it runs, measured, and restored byte for byte. This
# script installs and builds what is missing, then runs demo.py. DEMO_PAIRS=50 shortens the measurement.
set -euo pipefail
cd "$(dirname "$0")/.."

tools/install-missing.sh mariadbd=mariadb-server sysbench=sysbench cc=build-essential python3=python3
if ! command -v cargo >/dev/null; then
    echo "missing: cargo, Rust 1.90 or newer; see https://rustup.rs" >&2
    exit 1
fi
cargo build --release --locked -p whet
exec python3 tools/demo.py
