"""A client that hides nothing: sends methods, contents and plain bytes, and writes down whatever comes."""

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from weir.wire.amqp.command_reader import Command, CommandReader
from weir.wire.amqp.content import publish
from weir.wire.amqp.frames import PROTOCOL_HEADER, Role
from weir.wire.amqp.methods import Method, basic, channel, connection, encode_method
from weir.wire.amqp.properties import Properties, encode_properties
from weir.wire.amqp.tables import Field, Table

TIMEOUT_S = 60.0
CLOSED = "closed"
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
_FRAME_MAX = 131_072


class Raw:
    """One connection, and what came on it that nobody has asked for yet."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        url = urlsplit(f"//{address}")
        assert url.hostname is not None
        assert url.port is not None
        self._socket = socket.create_connection((url.hostname, url.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._reader = CommandReader(Role.CLIENT, frame_max=1 << 24, max_body=1 << 30, max_held=1 << 30)
        self._came: list[Command] = []
        self.frame_max = _FRAME_MAX

    # --- opening ---------------------------------------------------------------------------------------------

    def open(
        self,
        *,
        capabilities: Mapping[str, bool] | None = None,
        vhost: str = "/",
        channel_max: int = 2047,
        frame_max: int = _FRAME_MAX,
        heartbeat: int = 0,
        user: str = "guest",
        password: str = "guest",
    ) -> Any:
        """Do all that opens a connection; the last answer."""
        self.send_bytes(PROTOCOL_HEADER)
        self.read()
        able = Table.of(CAPABILITIES if capabilities is None else dict(capabilities))
        login = b"\0" + user.encode() + b"\0" + password.encode()
        self.send(0, connection.StartOk(Table.of({"capabilities": able}), "PLAIN", login))
        tune = self.read()
        if not isinstance(tune, Command) or not isinstance(tune.method, connection.Tune):
            return told(tune)
        self.frame_max = frame_max or _FRAME_MAX
        self.send(0, connection.TuneOk(channel_max, frame_max, heartbeat))
        self.send(0, connection.Open(vhost))
        return told(self.read())

    def channel(self, number: int = 1) -> Any:
        return self.ask(number, channel.Open())

    # --- saying and hearing ----------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        with suppress(OSError):  # the broker may have closed it: what it said before is to be read
            self._socket.sendall(data)

    def send(self, number: int, *methods: Method) -> None:
        self.send_bytes(b"".join(encode_method(number, method) for method in methods))

    def publish(
        self, number: int, method: basic.Publish, body: bytes = b"", properties: Properties | None = None
    ) -> None:
        """Methods that go out before the next one is read, in one piece."""
        encoded = encode_properties(properties or Properties())
        self.send_bytes(b"".join(bytes(part) for part in publish(number, method, encoded, body, self.frame_max)))

    def ask(self, number: int, method: Method) -> Any:
        """Say it; the next that comes, as a value."""
        self.send(number, method)
        return self.hear()

    def hear(self, timeout_s: float = TIMEOUT_S) -> Any:
        """The next that comes, as a value."""
        return told(self.read(timeout_s))

    def hear_all(self, count: int) -> list[Any]:
        return [self.hear() for _ in range(count)]

    def read(self, timeout_s: float = TIMEOUT_S) -> Command | str:
        """The next that comes: a command, `closed`, or `timeout`."""
        deadline = time.monotonic() + timeout_s
        while not self._came:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                data = self._socket.recv(1 << 18)
            except TimeoutError:
                return "timeout"
            except OSError:
                return CLOSED
            if not data:
                return CLOSED
            self._came += self._reader.feed(data)
        return self._came.pop(0)

    def read_bytes(self, count: int) -> bytes:
        """So many bytes as they come, or those before the end."""
        data = b""
        try:
            while len(data) < count and (more := self._socket.recv(count - len(data))):
                data += more
        except OSError:
            pass
        return data

    def hang_up(self) -> None:
        """As if the client had died."""
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


def told(command: Command | str) -> Any:
    """A command as a value: its name and what it says."""
    if isinstance(command, str):
        return command
    method = command.method
    if isinstance(method, connection.Close | channel.Close):
        which = "connection" if isinstance(method, connection.Close) else "channel"
        at = f" at {method.failing_class}.{method.failing_method}" if method.failing_class else ""
        return f"{which} {method.reply_code} {method.reply_text}{at}"
    found: dict[str, Any] = {"on": command.channel, "is": method.name}
    found |= {field.name: value_of(getattr(method, field.name)) for field in fields(method)}  # type: ignore[arg-type]
    if command.properties is not None:
        found["properties"] = {
            name: value_of(value)
            for name in Properties.__slots__  # type: ignore[attr-defined]
            if (value := getattr(command.properties, name)) is not None
        }
        found["body"] = bytes(command.body or b"").decode("utf-8", "backslashreplace")
    return found


def value_of(value: Any) -> Any:
    """A field with its tag, wherever it is more than text."""
    match value:
        case Table():
            return {name: value_of(field) for name, field in value.fields}
        case Field(tag, inside):
            if tag == "F":
                return value_of(inside)
            if tag == "A":
                return [value_of(one) for one in inside]
            return inside if tag == "S" else f"{tag}:{inside}"
        case _:
            return value
