"""A guest of the benchmarks: a program in C, C++ or Rust that counts its work in a page of a file."""

import mmap
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

from server import die_with_parent


# The compiler for each file name extension.
COMPILERS = {
    ".c": ["gcc", "-O2", "-pthread"],
    ".cc": ["g++", "-O2", "-pthread"],
    ".rs": ["rustc", "--edition", "2024", "-Copt-level=2"],
}


def build(name: str, program: Path) -> None:
    """Compiles the source with this name."""
    here = Path(__file__).resolve().parent
    ending = next(e for e in COMPILERS if (here / f"{name}{e}").exists())
    subprocess.run([*COMPILERS[ending], str(here / f"{name}{ending}"), "-o", str(program)], check=True)


@contextmanager
def running(name: str, *words: str) -> Iterator[tuple[int, Callable[[int], int]]]:
    """Builds and runs `name`, whose source lies beside this file. Yields its pid, and a function that reads
    the counter at an offset of the page, in bytes."""
    with tempfile.TemporaryDirectory(prefix=f"whet-{name}-") as folder:
        program, file = Path(folder) / name, Path(folder) / "page"
        build(name, program)
        file.write_bytes(bytes(4096))
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096) as page:
            process = subprocess.Popen([str(program), str(file), *words], preexec_fn=die_with_parent)
            try:
                yield process.pid, lambda at: struct.unpack_from("<Q", page, at)[0]
            finally:
                process.kill()
                process.wait()
