"""The versions of PostgreSQL by name: where the programs of each are. `tools/postgres.py` runs them."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from servers.fetch import FetchError, UnknownServer, cached, from_debian_unstable

# The server's user, which Debian's packages create.
USER = "postgres"


@dataclass(frozen=True)
class Programs:
    """The programs of one version. `bin` is their folder as they see it, in the root directory `root`."""

    bin: Path
    root: Path | None = None


def installed() -> Programs:
    """Returns the newest installed version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    if not found:
        raise FetchError("PostgreSQL is not installed; Debian: apt install postgresql")
    return Programs(found[-1])


def postgresql_18() -> Programs:
    """Built for a newer libc than the machine's, which it brings along. It runs in a root directory of its own."""
    if os.geteuid() != 0:
        raise FetchError("postgresql-18 brings its own libc and runs in a root of its own: that takes root")
    try:
        pwd.getpwnam(USER)
    except KeyError:
        raise FetchError(f"there is no user {USER}; Debian: apt install postgresql") from None
    # `initdb` starts the server by a shell.
    root = cached("postgresql-18", lambda into: from_debian_unstable("postgresql-18", "18.", into, "dash"))
    return Programs(Path("/usr/lib/postgresql/18/bin"), root)


POSTGRESQL = {"postgresql": installed, "postgresql-18": postgresql_18}


def programs(name: str) -> Programs:
    """Returns the programs of a version. They are fetched if they are not in the cache."""
    if name not in POSTGRESQL:
        raise UnknownServer(f"no PostgreSQL is called {name}; there are {', '.join(POSTGRESQL)}")
    return POSTGRESQL[name]()
