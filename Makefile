# The two commands of the README need nothing prepared: each installs what is missing.

.PHONY: demo test stress bench bench-bolt deb lint setup

# The main job on a real server: start a private MariaDB, drive it, optimize it live, print the measured gain.
demo:
	tools/demo.sh

# All tests, in under twenty-five minutes on two cores: of three at once one mostly waits.
test: setup
	RUST_TEST_THREADS=3 cargo test --workspace --no-fail-fast
	WHET=target/debug/whet tools/acceptance.sh short

# The long forms: every guest in every build, three seeds, minutes of load.
stress: setup
	WHET_STRESS=1 cargo test --release --workspace --no-fail-fast
	WHET=target/release/whet tools/acceptance.sh long

# The gain on MariaDB, MySQL, PostgreSQL, redis, memcached, nginx, haproxy, CPython, Ruby, PHP and SQLite by paired windows,
# with an A/A control beside each, of Debian's release and of Debian unstable; what each pass has of it; what counting and
# the daemon cost, what a program gains that waits for its data, and what huge pages gain for shared memory (that takes root).
# Some three hours; figures go to bench/out.
bench bench-bolt: export WHET = $(CURDIR)/target/release/whet
bench: setup
	cargo build --release -p whet -p lab
	tools/install-missing.sh ruby=ruby php=php-cli
	bench/run.py
	bench/run.py --server mysql-9.7
	bench/run.py --server mariadb-11.8
	bench/counting.py
	bench/guest_gain.py back_end
	bench/stops.py
	bench/guest_gain.py unwinding
	bench/watching.py
	bench/family.py
	bench/family.py --load tpc-b
	bench/family.py --load analytic
	bench/family.py --server postgresql-18
	bench/family.py --server postgresql-18 --load tpc-b
	bench/servers.py
	bench/servers.py --newest
	bench/passes.py
	bench/huge_data.py

# The gain on MariaDB beside that of offline optimizers, in a build that llvm-bolt can work on. BUILDS names them (see
# bench/bolt_server.py); the newest llvm-bolt takes root. The first time an hour, with `pgo` two, and gigabytes in BOLT;
# then half an hour for each load and build.
BOLT ?= /var/tmp/whet-bolt
BUILDS ?= bolted,bolted-newest
bench-bolt: setup
	cargo build --release -p whet
	bench/bolt_server.py $(BOLT) --builds '$(BUILDS)'
	bench/bolt.py $(BOLT) --builds '$(BUILDS)'

# The Debian packages, to target/deb.
deb:
	cargo build --release --locked -p whet
	tools/deb.sh whet
	cargo build --release --locked -p fleet_sync --features cloud
	tools/deb.sh whet-fleet

# Format, lints (with them that nothing needs a Rust newer than `rust-version`), links of the documentation, and that the
# fuzz targets compile.
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings -D clippy::incompatible-msrv
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items
	CARGO_TARGET_DIR=target/fuzz cargo check --manifest-path fuzz/Cargo.toml --no-default-features

setup:
	tools/setup.sh
