"""Ports for processes that a supervisor starts, known before they run and kept for them while they do not."""

import socket
from collections.abc import Iterable

_LOOPBACK = "127.0.0.1"


class HeldPorts:
    """Ports that are bound here, without listening: who looks for a free one, or connects from any, gets none of
    them, also while the process that listens there is being started again. Whoever asks for the port itself and
    allows its address to be reused, as servers do, gets it."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], socket.socket] = {}

    def choose(self, wanted: Iterable[int], host: str = _LOOPBACK) -> list[int]:
        """For each port the same, if nobody has it or holds it, else any free one (0: any). All are different."""
        return [self._bound(host, port) or self._bound(host, 0) for port in wanted]

    def hold(self, ports: Iterable[int], host: str = _LOOPBACK) -> list[int]:
        """Ports that were chosen before; the answer is those that somebody has now."""
        wanted = [port for port in ports if (host, port) not in self._held]
        return [port for port in wanted if not self._bound(host, port, reuse=True)]

    def close(self) -> None:
        for each in self._held.values():
            each.close()
        self._held.clear()

    def _bound(self, host: str, port: int, *, reuse: bool = False) -> int:
        """The port, or the one that was found for 0; 0 if somebody has it."""
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            if reuse:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind((host, port))
        except OSError:
            made.close()
            if port == 0:
                raise
            return 0
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # from now on, for who is to listen there
        found: int = made.getsockname()[1]
        self._held[host, found] = made
        return found
