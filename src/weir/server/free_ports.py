"""Ports for processes that are started by a supervisor, known before they run."""

import socket
from collections.abc import Iterable

_LOOPBACK = "127.0.0.1"


def choose_ports(wanted: Iterable[int], host: str = _LOOPBACK) -> list[int]:
    """For each port the same, if nobody has it, else any free one (0: any). All are different."""
    held: list[socket.socket] = []
    try:
        held.extend(_bound(host, port) or _any(host) for port in wanted)
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def _bound(host: str, port: int) -> socket.socket | None:
    if port == 0:
        return None
    taken = _socket(host)
    try:
        taken.bind((host, port))
    except OSError:
        taken.close()
        return None
    return taken


def _any(host: str) -> socket.socket:
    taken = _socket(host)
    taken.bind((host, 0))
    return taken


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made
