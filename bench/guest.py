"""A guest of the benchmarks: a program in C that counts its work in a page of a file."""

import mmap
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable

from server import die_with_parent


@contextmanager
def running(name: str, *words: str) -> Iterator[tuple[int, Callable[[int], int]]]:
    """Builds and runs `name`.c beside this file; its pid, and what reads the counter at an offset of the page."""
    with tempfile.TemporaryDirectory(prefix=f"whet-{name}-") as folder:
        program, file = Path(folder) / name, Path(folder) / "page"
        source = Path(__file__).resolve().parent / f"{name}.c"
        subprocess.run(["gcc", "-O2", "-pthread", str(source), "-o", str(program)], check=True)
        file.write_bytes(bytes(4096))
        with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 4096) as page:
            process = subprocess.Popen([str(program), str(file), *words], preexec_fn=die_with_parent)
            try:
                yield process.pid, lambda at: struct.unpack_from("<Q", page, at)[0]
            finally:
                process.kill()
                process.wait()
