"""The part of the MySQL client protocol that status counters need: log in without a password over a unix
socket, send a query, read its rows as text.

With it the tools read a counter in one round trip, without the process of a client program. Packet layouts:
MariaDB Knowledge Base, "Clients & Utilities / Client/Server Protocol".
"""

import socket
import struct

# Capability bits of the handshake.
LONG_PASSWORD = 0x1
CONNECT_WITH_DB = 0x8
PROTOCOL_41 = 0x200
TRANSACTIONS = 0x2000
SECURE_CONNECTION = 0x8000
PLUGIN_AUTH = 0x80000

COM_QUIT = b"\x01"
COM_QUERY = b"\x03"
UTF8MB4 = 45


class MysqlError(Exception):
    """The server refused a request, or its reply is not in the protocol."""


def lenenc(data: bytes, at: int) -> tuple[int | None, int]:
    """Parses a length-encoded integer at `at`. Returns its value (None for SQL NULL) and the offset after
    it."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    if first == 0xFB:
        return None, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def text_row(data: bytes) -> list[str | None]:
    """Parses one row of the text protocol."""
    row: list[str | None] = []
    at = 0
    while at < len(data):
        length, at = lenenc(data, at)
        if length is None:
            row.append(None)
        else:
            row.append(data[at : at + length].decode("utf-8", "replace"))
            at += length
    return row


def handshake_response(user: str, database: str) -> bytes:
    """Builds the login packet of a user without a password."""
    caps = LONG_PASSWORD | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | PLUGIN_AUTH
    if database:
        caps |= CONNECT_WITH_DB
    body = struct.pack("<IIB23x", caps, 1 << 24, UTF8MB4)
    body += user.encode() + b"\0"
    body += b"\0"  # the length of an empty password proof
    if database:
        body += database.encode() + b"\0"
    return body + b"mysql_native_password\0"


class Connection:
    """One session. Use it as a context manager, or call `close`."""

    def __init__(self, path: str, user: str = "root", database: str = "", timeout: float = 30.0):
        self._sequence = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(path)
            self._stream = self._socket.makefile("rb")
            self._login(user, database)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session. It is no error if the server has ended."""
        try:
            self._sequence = 0
            self._send(COM_QUIT)
        except OSError:
            pass
        self._stream.close()
        self._socket.close()

    def query(self, sql: str) -> list[list[str | None]]:
        """Runs a statement and returns its rows (none if the statement gives no rows)."""
        self._sequence = 0
        self._send(COM_QUERY + sql.encode())
        first = self._receive()
        if first[0] == 0x00:
            return []
        columns, _ = lenenc(first, 0)
        for _ in range(columns or 0):
            self._receive()
        self._receive()  # the end of the column definitions
        rows = []
        while True:
            packet = self._receive()
            if packet[0] == 0xFE and len(packet) < 9:
                return rows
            rows.append(text_row(packet))

    def status(self, name: str) -> int:
        """Returns a global status counter."""
        rows = self.query(f"SHOW GLOBAL STATUS LIKE '{name}'")
        if len(rows) != 1 or rows[0][1] is None:
            raise MysqlError(f"the server has no status counter {name!r}")
        return int(rows[0][1])

    def _login(self, user: str, database: str) -> None:
        greeting = self._receive()
        if greeting[0] != 10:
            raise MysqlError(f"handshake version {greeting[0]} is not 10")
        self._send(handshake_response(user, database))
        answer = self._receive()
        # 0xFE: the account has another method. With unix_socket the server checks the user of this process,
        # and an account without a password takes an empty proof. An empty packet serves both.
        if answer[0] == 0xFE:
            self._send(b"")
            answer = self._receive()
        if answer[0] != 0x00:
            raise MysqlError(f"login as {user!r} was not accepted")

    def _send(self, payload: bytes) -> None:
        self._socket.sendall(len(payload).to_bytes(3, "little") + bytes([self._sequence]) + payload)
        self._sequence = (self._sequence + 1) & 0xFF

    def _receive(self) -> bytes:
        header = self._exactly(4)
        self._sequence = (header[3] + 1) & 0xFF
        payload = self._exactly(int.from_bytes(header[:3], "little"))
        if not payload:
            raise MysqlError("an empty packet")
        if payload[0] == 0xFF:
            code = int.from_bytes(payload[1:3], "little")
            raise MysqlError(f"error {code}: {payload[3:].decode('utf-8', 'replace')}")
        return payload

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise MysqlError("the server closed the connection")
        return data
