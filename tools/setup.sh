#!/usr/bin/env bash
# Installs what the tests, the demo and the benchmarks need and what is missing here: compilers for the guests, a debugger,
# a server and its load. Says what is missing where it cannot install.
set -euo pipefail

declare -A package=(
  [gcc]=gcc [g++]=g++ [clang]=clang [make]=make [gdb]=gdb [python3]=python3 [xz]=xz-utils
  [mariadbd]=mariadb-server [sysbench]=sysbench [sqlite3]=sqlite3 [perl]=perl [setpriv]=util-linux
)
missing=()
for command in "${!package[@]}"; do
  PATH="$PATH:/usr/sbin:/sbin" command -v "$command" >/dev/null || missing+=("${package[$command]}")
done
command -v cargo >/dev/null || { echo "setup: Rust is missing: install rustup's stable toolchain (1.90 or later)" >&2; exit 1; }
[ "${#missing[@]}" -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "setup: missing: ${missing[*]} (Debian package names); install them and try again" >&2
  exit 1
fi
echo "setup: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# The packaged server must not start: tests run private ones.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
  trap 'rm -f "$policy"' EXIT
fi
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
