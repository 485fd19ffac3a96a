"""Runs the unit tests of a file, and prints the last line that every test of this repository prints."""

import unittest


def run_and_tell() -> int:
    """Prints "N passed, N failed" and returns an exit code."""
    result = unittest.main(module="__main__", exit=False).result
    # A failed subtest counts as one failure of its test.
    failed = len({getattr(case, "test_case", case).id() for case, _ in [*result.failures, *result.errors]})
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 0 if result.wasSuccessful() else 1
