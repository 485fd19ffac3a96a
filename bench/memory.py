"""The memory of a process, as /proc/PID/smaps reports it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Mapping:
    """A mapping of a process: its bytes in memory that belong to no file, and its bytes in huge pages."""

    permissions: str
    anonymous: int = 0
    huge: int = 0


def mappings(pid: int) -> dict[str, Mapping]:
    """Returns all mappings of a process by their start address (hexadecimal)."""
    found: dict[str, Mapping] = {}
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *more = line.split()
        if not first.endswith(":"):
            last = found[first.partition("-")[0]] = Mapping(more[0])
        elif first == "Anonymous:":
            last.anonymous = int(more[0]) * 1024
        elif first in ("AnonHugePages:", "FilePmdMapped:"):
            last.huge += int(more[0]) * 1024
    return found


def huge_code(pid: int) -> int:
    """Returns the bytes of a process's code in huge pages."""
    return sum(m.huge for m in mappings(pid).values() if "x" in m.permissions)
