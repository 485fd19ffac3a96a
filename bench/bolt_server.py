#!/usr/bin/env python3
"""Builds the servers that bench/bolt.py compares: Debian's MariaDB with relocations, the same optimized offline by
llvm-bolt, and one that gcc optimized with a profile.

    bench/bolt_server.py FOLDER [--jobs N] [--builds NAME,...] [LOAD...]

    plain          Debian's source package, compiled as Debian compiles it, with three differences: llvm-bolt needs
                   relocations and symbols in the file, and no functions split by the compiler; there is no debug
                   information; engines and plugins that no load here uses are left out
    bolted         `plain`, laid out by llvm-bolt 16 with the profile of its own instrumented server
    bolted-newest  `plain`, optimized by Debian unstable's llvm-bolt with the same profile and passes beyond layout
    pgo            the same source, compiled twice by gcc: with counters, then with their profile

A profile is of all loads. A compilation takes about half an hour on two cores and 4 GB: one for `plain`, two for `pgo`.
The results are FOLDER/NAME. Existing files are not built again: remove a result for other options, and
FOLDER/profile.fdata as well for other loads. Other users must be able to reach FOLDER, as servers do not run as root,
but not to write to it.

Needs the source packages of the machine's own release, from its own mirror, and for `bolted-newest` root. As root, it
installs the packages listed below.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from loaded import LOADS, ROWS, TABLES  # noqa: E402
from mysql_wire import MysqlError  # noqa: E402
from server import Load, Server, ServerError, exit_on_signals  # noqa: E402
from servers import FetchError  # noqa: E402
from servers.fetch import cached, debian_source, from_debian_unstable, private_apt  # noqa: E402
from servers.room import die_with_parent, usr_of  # noqa: E402

# The path at which llvm-bolt finds its runtime library. Through /usr/bin it does not find it.
BOLT = "/usr/lib/llvm-16/bin/llvm-bolt"
# Debian unstable's package, and where it has the program.
NEWEST, NEWEST_BOLT = "bolt-23", "/usr/lib/llvm-23/bin/llvm-bolt"
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
NEWEST_LAYOUT = [
    *("-reorder-blocks=ext-tsp", "-reorder-functions=cdsort", "-split-functions", "-split-strategy=cdsplit"),
    *("-split-all-cold", "-split-eh", "-icf=all", "-plt=hot", "-hugify", "-dyno-stats"),
    *("-inline-small-functions", "-icp=all", "-simplify-rodata-loads", "-peepholes=all", "-frame-opt=hot"),
]
# llvm-bolt's instrumented server has a tenth of the usual speed.
SECONDS_PER_LOAD = 60


def run(*command: object, folder: Path | None = None, usr: Path | None = None) -> None:
    """Runs one command, whose output goes to that of this program. The command ends with this program, with
    all it started. It sees the /usr of the root folder `usr`, if one is given."""
    print("+", *command, file=sys.stderr, flush=True)
    words = [str(word) for word in command]

    def enter() -> None:
        if usr is not None:
            usr_of(usr)
        die_with_parent()

    with subprocess.Popen(words, cwd=folder, process_group=0, preexec_fn=enter) as child:
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


def compiled(folder: Path, name: str, build: str, compiler: str, linker: str, jobs: int) -> Path:
    """Builds the server in the folder `build` as the file `name`, with more flags for compiler and linker."""
    made = folder / name
    if not made.exists():
        tree, place = source(folder), folder / build
        place.mkdir(exist_ok=True)
        each = {
            f"CMAKE_{language}_FLAGS": f"{flags(variable)} {flags('CPPFLAGS')} {compiler}"
            for language, variable in (("C", "CFLAGS"), ("CXX", "CXXFLAGS"))
        }
        each |= {f"{name}_RELWITHDEBINFO": "-O2 -DNDEBUG" for name in each}
        each["CMAKE_EXE_LINKER_FLAGS"] = f"{flags('LDFLAGS')} {linker}"
        run("cmake", tree, *OPTIONS, *(f"-D{name}={value}" for name, value in each.items()), folder=place)
        run("make", f"-j{jobs}", "mariadbd", folder=place)
        with whole(made) as new:
            shutil.copyfile(place / "sql" / "mariadbd", new)
    return made


def plain(folder: Path, jobs: int) -> Path:
    """Builds the server with its relocations."""
    return compiled(folder, "plain", "build", WHOLE, "-Wl,--emit-relocs", jobs)


def counted_by_server(program: Path, place: Path, loads: list[str]) -> None:
    """Runs a server that counts under the loads. By its end it has written its counts to the folder `place`, which is
    emptied before."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if os.geteuid() == 0:
        # The server runs as another user.
        shutil.chown(place, "mysql")
    with Server(program=str(program)) as running:
        running.prepare(TABLES, ROWS)
        for name in loads:
            before = running.deadlocks()
            with Load(running.socket, name, 4, SECONDS_PER_LOAD, TABLES, ROWS) as load:
                result = load.finish()
            print(f"{name}: {result}", file=sys.stderr)
            if not result.clean_but_for(running.deadlocks() - before):
                raise ServerError(f"{name}: a query failed: {result}")


def profile(folder: Path, server: Path, loads: list[str]) -> Path:
    """Counts how often each edge runs under the loads, with llvm-bolt's instrumented server."""
    counts, counting, place = folder / "profile.fdata", folder / "counting", folder / "counts"
    if counts.exists():
        return counts
    said = place / "profile.fdata"
    # The server writes all counts since its start, not those of the last second: each second, and at the end.
    options = [f"--instrumentation-file={said}", "--instrumentation-sleep-time=1", "--instrumentation-no-counters-clear"]
    with whole(counting) as new:
        run(BOLT, server, "-o", new, "-instrument", *options)
    counted_by_server(counting, place, loads)
    # A separate process writes the counts, and ends a moment after the server.
    time.sleep(5)
    with whole(counts) as new:
        shutil.copyfile(said, new)
    return counts


def bolted(folder: Path, jobs: int, loads: list[str]) -> None:
    """Lays `plain` out by llvm-bolt 16."""
    server = plain(folder, jobs)
    counts = profile(folder, server, loads)
    with whole(folder / "bolted") as new:
        run(BOLT, server, "-o", new, f"-data={counts}", *LAYOUT)


def newest() -> Path:
    """Returns the root folder with Debian unstable's llvm-bolt."""
    if os.geteuid() != 0:
        raise FetchError("programs that bring their own libc run on a /usr of their own: that takes root")
    return cached(NEWEST, lambda into: from_debian_unstable(NEWEST, "", into))


def bolted_newest(folder: Path, jobs: int, loads: list[str]) -> None:
    """Optimizes `plain` by Debian unstable's llvm-bolt."""
    server = plain(folder, jobs)
    counts = profile(folder, server, loads)
    with whole(folder / "bolted-newest") as new:
        run(NEWEST_BOLT, server, "-o", new, f"-data={counts}", *NEWEST_LAYOUT, usr=newest())


def pgo(folder: Path, jobs: int, loads: list[str]) -> None:
    """Builds the server with gcc's profile. Both builds are in folders of one path, as gcc finds an object's counts by
    its path."""
    build, counts = "build-pgo", folder / "pgo-counts"
    counting = f"-fprofile-generate={counts} -fprofile-update=prefer-atomic"
    counted_by_server(compiled(folder, "pgo-counting", build, counting, counting, jobs), counts, loads)
    if not any(counts.glob("*mysqld.cc.gcda")):
        raise ServerError(f"the server wrote no counts to {counts}")
    # make does not know that objects depend on counts.
    shutil.rmtree(folder / build)
    # Counts are written while threads still run, so they may not add up. Code that no load reached has none.
    counted = f"-fprofile-use={counts} -fprofile-correction -fprofile-partial-training -Wno-missing-profile"
    compiled(folder, "pgo", build, f"{counted} -Wno-error=coverage-mismatch", "", jobs)


# What can be built besides `plain`.
BUILDS: dict[str, Callable[[Path, int, list[str]], None]] = {
    "bolted": bolted,
    "bolted-newest": bolted_newest,
    "pgo": pgo,
}


def builds(words: str) -> list[str]:
    """Parses names of builds; no word means none."""
    names = words.split(",") if words else []
    if unknown := set(names) - set(BUILDS):
        raise argparse.ArgumentTypeError(f"{unknown.pop()} is none of {', '.join(BUILDS)}")
    return names


def main() -> int:
    exit_on_signals()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--builds", type=builds, default=["bolted"], metavar="NAME,...", help=f"of {', '.join(BUILDS)}")
    p.add_argument("loads", nargs="*", default=LOADS)
    args = p.parse_intermixed_args()
    folder = args.folder.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            raise PermissionError(f"{folder} is somebody else's")
        folder.chmod(0o755)
        wanted = [name for name in args.builds if not (folder / name).exists()]
        if "bolted-newest" in wanted:
            # A failure to fetch it should not come after an hour of compiling.
            newest()
        plain(folder, args.jobs)
        for name in wanted:
            BUILDS[name](folder, args.jobs, args.loads)
    except (FetchError, MysqlError, ServerError, OSError, subprocess.SubprocessError) as e:
        print(f"bolt_server: {e}", file=sys.stderr)
        return 1
    print("\n".join(str(folder / name) for name in ["plain", *args.builds]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
