#!/bin/bash
# Installs what the tests and the benchmarks need and is missing: compilers for the guests, a debugger, a
# server and its load.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v cargo >/dev/null; then
    echo "missing: cargo, Rust 1.90 or newer; see https://rustup.rs" >&2
    exit 1
fi
exec tools/install-missing.sh cc=build-essential clang=clang gdb=gdb perf=linux-perf python3=python3 xz=xz-utils perl=perl \
    mariadbd=mariadb-server sysbench=sysbench sqlite3=sqlite3 setpriv=util-linux \
    /usr/include/c++/v1/stdexcept=libc++-14-dev /usr/lib/llvm-14/lib/libc++abi.a=libc++abi-14-dev \
    /usr/lib/llvm-14/lib/libunwind.so=libunwind-14-dev /usr/lib/x86_64-linux-gnu/libunwind.so.8=libunwind8 /usr/bin/musl-gcc=musl-tools \
    llvm-bolt-16=bolt-16 ld.lld-14=lld-14 chromium=chromium unshare=util-linux man=man-db dpkg-shlibdeps=dpkg-dev \
    valgrind=valgrind redis-server=redis-server memcached=memcached nginx=nginx-light haproxy=haproxy openssl=openssl eu-stack=elfutils \
    /usr/lib/postgresql=postgresql promtool=prometheus \
    prometheus-node-exporter=prometheus-node-exporter
