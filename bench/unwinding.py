#!/usr/bin/env python3
"""Measures programs that unwind their stacks without end, 24 frames deep: exceptions of C++ and panics of
Rust. 0.995 and more of the work per CPU is no loss.

    bench/unwinding.py [--pairs N] [--seed N] [--whet PATH] [--json FILE]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from guest_gain import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main("unwinding", __doc__, {"throwing": 2.0, "panics": 2.0}))
