#!/usr/bin/env python3
"""Builds the two servers that bench/bolt.py compares: Debian's MariaDB with relocations, plain and optimized
by llvm-bolt.

    bench/bolt_server.py FOLDER [--jobs N] [LOAD...]

Debian's source package is compiled as Debian compiles it, with three differences. llvm-bolt needs relocations
and symbols in the file, and no functions split by the compiler. There is no debug information. Engines and
plugins that no load here uses are left out. This takes about half an hour on two cores and 4 GB. Then
llvm-bolt's instrumented server runs under the loads, and one profile of all loads gives the layout. The
results are FOLDER/plain and FOLDER/bolted. Existing files are not built again: remove FOLDER/profile.fdata
for other loads, FOLDER/bolted for other options. Other users must be able to reach FOLDER, as servers do not
run as root, but not to write to it.

Needs the source packages of the machine's own release, from its own mirror. As root, it installs the packages
listed below.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from loaded import LOADS, ROWS, TABLES  # noqa: E402
from mysql_wire import MysqlError  # noqa: E402
from server import Load, Server, ServerError, exit_on_signals  # noqa: E402
from servers import FetchError  # noqa: E402
from servers.fetch import debian_source, private_apt  # noqa: E402
from servers.room import die_with_parent  # noqa: E402

# The path at which llvm-bolt finds its runtime library. Through /usr/bin it does not find it.
BOLT = "/usr/lib/llvm-16/bin/llvm-bolt"
INCLUDE = "/usr/include"
NEEDED = [
    *("bison=bison", f"{BOLT}=bolt-16", "cmake=cmake", "dpkg-source=dpkg-dev", "g++=g++", "make=make"),
    *(f"{INCLUDE}/libaio.h=libaio-dev", f"{INCLUDE}/bzlib.h=libbz2-dev", f"{INCLUDE}/fmt/core.h=libfmt-dev"),
    *(f"{INCLUDE}/x86_64-linux-gnu/curl/curl.h=libcurl4-openssl-dev", f"{INCLUDE}/lz4.h=liblz4-dev"),
    *(f"{INCLUDE}/lzma.h=liblzma-dev", f"{INCLUDE}/lzo/lzo1x.h=liblzo2-dev", f"{INCLUDE}/ncurses.h=libncurses-dev"),
    *(f"{INCLUDE}/numa.h=libnuma-dev", f"{INCLUDE}/pcre2.h=libpcre2-dev", f"{INCLUDE}/snappy.h=libsnappy-dev"),
    *(f"{INCLUDE}/openssl/ssl.h=libssl-dev", f"{INCLUDE}/systemd/sd-daemon.h=libsystemd-dev"),
    *(f"{INCLUDE}/liburing.h=liburing-dev", f"{INCLUDE}/libxml2=libxml2-dev", f"{INCLUDE}/zstd.h=libzstd-dev"),
    f"{INCLUDE}/zlib.h=zlib1g-dev",
]
# The instrumented server of llvm-bolt 16 crashes if a function is in two parts.
WHOLE = "-fno-reorder-blocks-and-partition"
UNUSED = ("MROONGA", "SPIDER", "CONNECT", "ROCKSDB", "OQGRAPH", "SPHINX", "S3", "COLUMNSTORE", "TOKUDB")
OPTIONS = [
    *("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DBUILD_CONFIG=mysql_release", "-DDEB=Debian", "-DWITH_WSREP=ON"),
    *("-DWITH_SSL=system", "-DWITH_URING=ON", "-DIGNORE_AIO_CHECK=ON", "-DCONC_DEFAULT_CHARSET=utf8mb4"),
    *("-DWITH_UNIT_TESTS=OFF", "-DPLUGIN_AUTH_GSSAPI_CLIENT=OFF"),
    *(f"-DPLUGIN_{name}=NO" for name in (*UNUSED, "AUTH_PAM", "AUTH_PAM_V1", "AUTH_GSSAPI")),
]
LAYOUT = [
    *("-reorder-blocks=ext-tsp", "-reorder-functions=hfsort+", "-split-functions", "-split-all-cold", "-split-eh"),
    *("-icf=1", "-plt=hot", "-hugify", "-dyno-stats"),
]
# The instrumented server has a tenth of the usual speed.
SECONDS_PER_LOAD = 60


def run(*command: object, folder: Path | None = None) -> None:
    """Runs one command, whose output goes to that of this program. The command ends with this program, with
    all it started."""
    print("+", *command, file=sys.stderr, flush=True)
    words = [str(word) for word in command]
    with subprocess.Popen(words, cwd=folder, process_group=0, preexec_fn=die_with_parent) as child:
        try:
            code = child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)
            raise
    if code != 0:
        raise subprocess.CalledProcessError(code, words)


@contextmanager
def whole(made: Path) -> Iterator[Path]:
    """Yields the path at which to write a file or folder, and renames it at the end. So the file exists whole
    or not at all."""
    new = made.with_name(f"{made.name}.new")
    if new.is_dir():
        shutil.rmtree(new)
    yield new
    if new.is_file():
        # llvm-bolt lets all users write to its output.
        new.chmod(0o755)
    new.rename(made)


def source(folder: Path) -> Path:
    """Returns the folder of Debian's source, unpacked and patched."""
    tree = folder / "source"
    if not tree.exists():
        run(ROOT / "tools" / "install-missing.sh", *NEEDED)
        with tempfile.TemporaryDirectory(prefix="whet-apt-") as state:
            options = private_apt(Path(state), debian_source("deb-src"))
            run("apt-get", *options, "-q", "source", "--download-only", "mariadb", folder=folder)
        with whole(tree) as new:
            run("dpkg-source", "-x", next(folder.glob("mariadb_*.dsc")), new)
    return tree


def flags(name: str) -> str:
    """Returns Debian's compiler flags, without debug information."""
    said = subprocess.run(["dpkg-buildflags", "--get", name], check=True, capture_output=True, text=True).stdout
    return " ".join(word for word in said.split() if word != "-g" and not word.startswith("-ffile-prefix-map"))


def plain(folder: Path, jobs: int) -> Path:
    """Builds the server with its relocations."""
    made = folder / "plain"
    if not made.exists():
        tree, build = source(folder), folder / "build"
        build.mkdir(exist_ok=True)
        each = {
            f"CMAKE_{language}_FLAGS": f"{flags(variable)} {flags('CPPFLAGS')} {WHOLE}"
            for language, variable in (("C", "CFLAGS"), ("CXX", "CXXFLAGS"))
        }
        each |= {f"{name}_RELWITHDEBINFO": "-O2 -DNDEBUG" for name in each}
        each["CMAKE_EXE_LINKER_FLAGS"] = f"{flags('LDFLAGS')} -Wl,--emit-relocs"
        run("cmake", tree, *OPTIONS, *(f"-D{name}={value}" for name, value in each.items()), folder=build)
        run("make", f"-j{jobs}", "mariadbd", folder=build)
        with whole(made) as new:
            shutil.copyfile(build / "sql" / "mariadbd", new)
    return made


def profile(folder: Path, server: Path, loads: list[str]) -> Path:
    """Counts how often each edge runs under the loads, with the instrumented server."""
    counts, counting, place = folder / "profile.fdata", folder / "counting", folder / "counts"
    if counts.exists():
        return counts
    # The server writes the counts, as another user.
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if os.geteuid() == 0:
        shutil.chown(place, "mysql")
    said = place / "profile.fdata"
    # The server writes all counts since its start, not those of the last second: each second, and at the end.
    options = [f"--instrumentation-file={said}", "--instrumentation-sleep-time=1", "--instrumentation-no-counters-clear"]
    with whole(counting) as new:
        run(BOLT, server, "-o", new, "-instrument", *options)
    with Server(program=str(counting)) as running:
        running.prepare(TABLES, ROWS)
        for name in loads:
            before = running.deadlocks()
            with Load(running.socket, name, 4, SECONDS_PER_LOAD, TABLES, ROWS) as load:
                result = load.finish()
            print(f"{name}: {result}", file=sys.stderr)
            if not result.clean_but_for(running.deadlocks() - before):
                raise ServerError(f"{name}: a query failed: {result}")
    # A separate process writes the counts, and ends a moment after the server.
    time.sleep(5)
    with whole(counts) as new:
        shutil.copyfile(said, new)
    return counts


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("loads", nargs="*", default=LOADS)
    args = p.parse_intermixed_args()
    folder = args.folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise PermissionError(f"{folder} is somebody else's")
        folder.chmod(0o755)
        server = plain(folder, args.jobs)
        bolted = folder / "bolted"
        if not bolted.exists():
            counts = profile(folder, server, args.loads)
            with whole(bolted) as new:
                run(BOLT, server, "-o", new, f"-data={counts}", *LAYOUT)
    except (FetchError, MysqlError, ServerError, OSError, subprocess.CalledProcessError) as e:
        print(f"bolt_server: {e}", file=sys.stderr)
        return 1
    print(f"{server}\n{bolted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
