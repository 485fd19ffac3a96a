"""Runs a file's unit tests and closes with the one line that every test of this repository closes with."""

import unittest


def run_and_tell() -> int:
    """An exit code, after printing "N passed, N failed"."""
    result = unittest.main(module="__main__", exit=False).result
    # A subtest that fails makes its test fail, once.
    failed = len({getattr(case, "test_case", case).id() for case, _ in [*result.failures, *result.errors]})
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 0 if result.wasSuccessful() else 1
