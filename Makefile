# The two commands of the README need nothing prepared: each installs what is missing.

.PHONY: demo test stress bench deb lint setup

# The main job on a real server: start a private MariaDB, drive it, optimize it live, print the measured gain.
demo:
	tools/demo.sh

# All tests, in under fifteen minutes on two cores: of three at once one mostly waits.
test: setup
	RUST_TEST_THREADS=3 cargo test --workspace --no-fail-fast
	WHET=target/debug/whet tools/acceptance.sh short

# The long forms: every guest in every build, three seeds, minutes of load.
stress: setup
	WHET_STRESS=1 cargo test --release --workspace --no-fail-fast
	WHET=target/release/whet tools/acceptance.sh long

# The gain on MariaDB, by paired windows, with a nothing-against-nothing run beside it.
bench: setup
	cargo build --release -p whet
	WHET=target/release/whet bench/run.py

# A Debian package, to target/deb.
deb:
	cargo build --release --locked -p whet
	tools/deb.sh

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

setup:
	tools/setup.sh
