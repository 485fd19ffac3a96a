"""Runs a command on a terminal of its own: terminal.py COMMAND...

Makes the terminal smaller after the first frame, presses Ctrl-C after the next, and reports as JSON how the command
ended and everything that it drew.
"""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time


def resize(terminal: int, columns: int, lines: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def frames(terminal: int, drawn: bytearray, wanted: int) -> None:
    """Reads until so many frames have begun and the last of them has ended."""
    limit = time.monotonic() + 60
    while drawn.count(b"\x1b[H") < wanted or not drawn.endswith(b"\x1b[J"):
        assert time.monotonic() < limit, bytes(drawn)
        if select.select([terminal], [], [], 1)[0]:
            drawn += os.read(terminal, 65536)


def what_came(terminal: int, seconds: float) -> bytes:
    """Returns what has been drawn since, if anything comes in this time."""
    try:
        return os.read(terminal, 65536) if select.select([terminal], [], [], seconds)[0] else b""
    except OSError:
        return b""


def main() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        # Before the command can see another size, so that it gets one change only.
        resize(0, 120, 30)
        os.environ["TERM"] = "xterm"
        os.execv(sys.argv[1], sys.argv[1:])
    drawn = bytearray()
    frames(terminal, drawn, 1)
    resize(terminal, 40, 6)
    frames(terminal, drawn, 2)
    os.write(terminal, b"\x03")
    # While the command still runs, a read can report the end of the terminal although the last bytes are under way
    # (n_tty_read of Linux 6.18 looks for input before it looks whether the other side is closed).
    limit = time.monotonic() + 60
    ended = 0
    while not ended:
        assert time.monotonic() < limit, bytes(drawn)
        drawn += what_came(terminal, 0.01)
        ended, status = os.waitpid(pid, os.WNOHANG)
    while more := what_came(terminal, 0):
        drawn += more
    print(json.dumps({"code": os.waitstatus_to_exitcode(status), "drawn": drawn.decode(errors="replace")}))


main()
