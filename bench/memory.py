"""What memory of a process is, by /proc/PID/smaps."""

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Mapping:
    """One mapping of a process: how many of its bytes in memory are no file's, and how many are in huge pages."""

    permissions: str
    anonymous: int = 0
    huge: int = 0


def mappings(pid: int) -> dict[str, Mapping]:
    """All mappings of a process by their first address."""
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
    """Bytes of a process's code in huge pages."""
    return sum(m.huge for m in mappings(pid).values() if "x" in m.permissions)
