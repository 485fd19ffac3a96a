#!/usr/bin/env python3
"""Runs a command on Debian unstable's programs: redis, memcached, nginx, haproxy, CPython, Ruby, PHP and SQLite.

The command sees unstable's /usr in the place of the machine's, with its C library; all other folders are the machine's.
The mount is visible to this command and its children alone, and ends with them. That takes root. The programs stay as
they were fetched, until their folder `newest` in the cache is removed.

    newest.py fetch                  bring the programs into the cache ($WHET_SERVERS)
    newest.py run COMMAND WORD...    become the command
"""

import os
import sys
from pathlib import Path

from servers import FetchError
from servers.fetch import cached, from_debian_unstable
from servers.room import usr_of

PACKAGES = ["memcached", "nginx", "haproxy", "python3", "ruby", "php-cli", "sqlite3", "coreutils"]


def newest() -> Path:
    """Returns the root folder with the programs. They are fetched if they are not in the cache."""
    if os.geteuid() != 0:
        raise FetchError("programs that bring their own libc run on a /usr of their own: that takes root")

    def make(into: Path) -> None:
        from_debian_unstable("redis-server", "", into, *PACKAGES)
        # Debian's package makes this link as it is installed.
        (into / "usr/bin/php").symlink_to("php.default")

    return cached("newest", make)


def main() -> int:
    words = sys.argv[1:]
    try:
        if words == ["fetch"]:
            print(newest())
            return 0
        if words[:1] == ["run"] and words[1:]:
            usr_of(newest())
            # The machine's locales are in its own /usr.
            os.execvpe(words[1], words[1:], {**os.environ, "LC_ALL": "C"})
    except (FetchError, OSError) as e:
        print(f"newest.py: {e}", file=sys.stderr)
        return 1
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
