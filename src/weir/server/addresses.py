"""Host and port of listeners, as on the command line."""

import socket
from typing import NamedTuple

from weir.model.errors import ConfigError

_WILDCARDS = ("", "0.0.0.0", "::")


class Address(NamedTuple):
    """The address of a listener; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`host:port` or `[v6 address]:port`; ConfigError if it is neither."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{text!r} is not an address", hint="write host:port, for example 127.0.0.1:3181")
    return Address(host, int(port))


def advertised(listening: Address, wanted: Address | None) -> Address:
    """The address for clients: the configured one, else that of the listener; on all interfaces, the host name."""
    if wanted is not None:
        return Address(wanted.host, wanted.port or listening.port)
    return Address(socket.gethostname() if listening.host in _WILDCARDS else listening.host, listening.port)
