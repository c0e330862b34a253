"""Ports of servers that are gone for a while, or for good, kept from everybody else.

Tests run beside each other, and a port that is free is soon another server's: clients that try the old one would
talk to that, and whoever starts there again would find it taken.
"""

import socket
from collections.abc import Iterable
from contextlib import suppress


def reserved(addresses: Iterable[str]) -> list[socket.socket]:
    """Sockets, to be closed, that are bound to the ports and do not listen: who connects is refused, and a server
    that asks for the very port gets it."""
    found = []
    for address in addresses:
        host, _, port = address.rpartition("//")[2].rpartition(":")
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # somebody was faster
            held.bind((host, int(port)))
        found.append(held)
    return found
