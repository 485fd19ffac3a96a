"""The `whet` command line, called from Python: arguments in, exit code and JSON output out."""

import json
import os
import resource
import subprocess
from pathlib import Path

OK = 0


class WhetError(Exception):
    """whet failed; the text is its own message."""


def default_whet() -> str:
    """Returns the path of the binary: $WHET, else the release build of this repository."""
    return os.environ.get("WHET") or str(Path(__file__).resolve().parent.parent / "target/release/whet")


def children_cpu() -> float:
    """Returns the CPU seconds of all children that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Whet:
    """One whet binary. `cpu_seconds` is the CPU time of the last command, user and system."""

    def __init__(self, path: str | None = None):
        self.path = path or default_whet()
        self.cpu_seconds = 0.0

    def run(self, *words: object, timeout: float = 120) -> dict:
        """Runs a command that must succeed, and returns its JSON output. Raises WhetError if it fails."""
        code, answer, errors = self.try_run(*words, timeout=timeout)
        if code != OK:
            said = " ".join(map(str, words))
            raise WhetError(f"`whet {said}` ended with {code}: {errors.strip() or json.dumps(answer)}")
        return answer

    def try_run(self, *words: object, timeout: float = 120) -> tuple[int, dict, str]:
        """Runs a command. Returns its exit code, JSON output ({} if there is none) and standard error."""
        before = children_cpu()
        try:
            done = subprocess.run(
                [self.path, *map(str, words), "--format", "json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                # A Ctrl-C at the terminal reaches only the caller, which may need whet once more to restore
                # the target.
                process_group=0,
            )
        except FileNotFoundError:
            raise WhetError(f"there is no {self.path}; build it with `cargo build --release -p whet`") from None
        except subprocess.TimeoutExpired:
            raise WhetError(f"`whet {' '.join(map(str, words))}` took longer than {timeout} s") from None
        self.cpu_seconds = children_cpu() - before
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            answer = {}
        return done.returncode, answer, done.stderr

    def state(self, pid: int) -> str | None:
        """Returns "optimized" or "undone"; None for a process that whet never changed."""
        for target in self.run("status", pid).get("targets", []):
            if target["pid"] == pid:
                return target["state"]
        return None
