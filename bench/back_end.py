#!/usr/bin/env python3
"""Measures what a program that waits for its data loses by clones, which cannot make it faster. 0.99 and more
of the work per CPU is no loss.

    bench/back_end.py [--pairs N] [--seed N] [--whet PATH] [--json FILE]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from guest_gain import main  # noqa: E402

if __name__ == "__main__":
    # The warm-up: the program first fills its array.
    sys.exit(main("back_end", __doc__, {"chase": 5.0}))
