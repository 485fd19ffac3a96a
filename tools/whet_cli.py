"""The `whet` command line, called from Python: words in, exit code and JSON answer out."""

import json
import os
import resource
import subprocess
from pathlib import Path

OK = 0


class WhetError(Exception):
    """whet did not do what was asked; the text is its own."""


def default_whet() -> str:
    """$WHET, else the release build of this repository."""
    return os.environ.get("WHET") or str(Path(__file__).resolve().parent.parent / "target/release/whet")


def children_cpu() -> float:
    """CPU seconds of all children that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Whet:
    """One whet binary. `cpu_seconds` is what the last command used, user and system."""

    def __init__(self, path: str | None = None):
        self.path = path or default_whet()
        self.cpu_seconds = 0.0

    def run(self, *words: object, timeout: float = 120) -> dict:
        """The JSON answer of a command that must succeed."""
        code, answer, errors = self.try_run(*words, timeout=timeout)
        if code != OK:
            said = " ".join(map(str, words))
            raise WhetError(f"`whet {said}` ended with {code}: {errors.strip() or json.dumps(answer)}")
        return answer

    def try_run(self, *words: object, timeout: float = 120) -> tuple[int, dict, str]:
        """Exit code, JSON answer ({} where there is none), standard error."""
        before = children_cpu()
        try:
            done = subprocess.run(
                [self.path, *map(str, words), "--format", "json"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                # A Ctrl-C at the terminal is for the caller, who may want whet once more to put things right.
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
        """"optimized" or "undone"; None for a process that whet never touched."""
        for target in self.run("status", pid).get("targets", []):
            if target["pid"] == pid:
                return target["state"]
        return None
