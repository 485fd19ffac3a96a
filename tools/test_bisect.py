#!/usr/bin/env python3
"""Tests tools/bisect with a made-up whet, whose command fails from a certain number of functions on."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from plain_result import run_and_tell

BISECT = Path(__file__).resolve().parent / "bisect"

# Clones "f1", "f2", ... and breaks the command in the way of SYMPTOM if function BAD is among the clones.
FAKE_WHET = """#!/usr/bin/env python3
import json, subprocess, sys
TOTAL, BAD, SYMPTOM = {total}, {bad}, {symptom!r}
words, command = sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:]
assert words[0] == "run" and words[words.index("--shuffle") + 1] == "7", words
limit = int(words[words.index("--max-functions") + 1]) if "--max-functions" in words else TOTAL
cloned = min(limit, TOTAL)
if SYMPTOM != "no report":
    with open(words[words.index("--report") + 1], "w") as f:
        json.dump({{"functions": {{"cloned": cloned, "last": f"f{{cloned}}"}}}}, f)
code = subprocess.call(command)
if cloned >= BAD:
    if SYMPTOM == "output":
        print("spoilt")
    elif SYMPTOM == "signal":
        code = 128 + 11
    elif SYMPTOM == "hangs":
        subprocess.call(["sleep", "100"])
sys.exit(128 - code if code < 0 else code)
"""


class Bisect(unittest.TestCase):
    """Each test gives the number of functions, the bad function, and the symptom."""

    def bisect(
        self, total: int, bad: int, symptom: str, command: tuple[str, ...] = ("echo", "hello"), timeout: int = 60
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as scratch:
            whet = Path(scratch) / "whet"
            whet.write_text(FAKE_WHET.format(total=total, bad=bad, symptom=symptom))
            whet.chmod(0o755)
            return subprocess.run(
                [sys.executable, BISECT, "--whet", whet, "--shuffle", "7", "--timeout", str(timeout), "--", *command],
                capture_output=True,
                text=True,
                check=False,
            )

    def test_finds_each_place(self) -> None:
        for total, bad in [(1, 1), (2, 1), (2, 2), (37, 1), (37, 23), (37, 37), (1000, 511)]:
            with self.subTest(total=total, bad=bad):
                done = self.bisect(total, bad, "signal")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(f"culprit: f{bad}\n", done.stdout)
                self.assertIn(f"--max-functions {bad} -- echo hello\n", done.stdout)

    def test_takes_few_runs(self) -> None:
        self.assertLessEqual(self.bisect(1000, 400, "signal").stdout.count(" functions: "), 11)

    def test_sees_changed_output(self) -> None:
        self.assertIn("culprit: f5\n", self.bisect(9, 5, "output").stdout)

    def test_a_hang_is_a_failure(self) -> None:
        done = self.bisect(2, 2, "hangs", timeout=5)
        self.assertIn("2 functions: hangs\n", done.stdout)
        self.assertIn("culprit: f2\n", done.stdout)

    def test_a_failing_command_may_be_the_reference(self) -> None:
        done = self.bisect(9, 5, "output", ("sh", "-c", "echo out; exit 3"))
        self.assertIn("plain: exit code 3", done.stdout)
        self.assertIn("culprit: f5\n", done.stdout)

    def test_death_by_a_signal_gives_the_same_code_plain_and_under_whet(self) -> None:
        # The plain command's death is reported by the kernel. whet reports it as a shell does, by 128 + 15.
        done = self.bisect(3, 9, "none", ("sh", "-c", "kill -TERM $$"))
        self.assertIn("plain: exit code 143", done.stdout)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_no_failure(self) -> None:
        done = self.bisect(9, 10, "signal")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no failure with seed 7\n", done.stdout)

    def test_no_report(self) -> None:
        done = self.bisect(9, 5, "no report")
        self.assertEqual(done.returncode, 3)
        self.assertIn("no report", done.stderr)

    def test_no_command(self) -> None:
        self.assertEqual(self.bisect(9, 5, "signal", ()).returncode, 2)


if __name__ == "__main__":
    sys.exit(run_and_tell())
