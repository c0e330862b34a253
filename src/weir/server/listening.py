"""Addresses that are taken before anything else starts.

So a port that is in use is reported at once, and a free one that the system chose is known while the parts that
tell others about it are made. Who connects early waits until the server behind the address accepts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLContext

from weir.model.errors import AddressInUseError, ConnectFailedError
from weir.runtime.interfaces import Connection, Listener, Network
from weir.server.addresses import Address


@contextmanager
def naming_setting(listener: str) -> Iterator[None]:
    """Errors of listening say which setting to change."""
    key = f"listeners.{listener}"
    try:
        yield
    except AddressInUseError as refused:
        hint = (
            "stop the process that listens there, or choose another port:"
            f" --set {key}=127.0.0.1:0 takes a free one, and weir up --port-offset 100 moves all listeners"
        )
        raise AddressInUseError(f"{key}: {refused.what}", hint=hint) from refused
    except ConnectFailedError as refused:
        raise ConnectFailedError(f"{key}: {refused.what}", hint=refused.hint) from refused


class BoundNetwork:
    """A network on which some addresses are listened on already; `listen` hands them to their server."""

    def __init__(self, net: Network) -> None:
        self._net = net
        self._bound: dict[Address, Listener] = {}

    async def bind(
        self,
        address: Address,
        *,
        tls: SSLContext | None = None,
        reserve: bool = False,
        clear_too: bool = False,
    ) -> Address:
        """Take the address; the same with the real port, or AddressInUseError."""
        listener = await self._net.listen(
            address.host, address.port, tls=tls, reserve=reserve, clear_too=clear_too
        )
        bound = Address(address.host, listener.port)
        self._bound[bound] = listener
        return bound

    @property
    def descriptor_waits(self) -> int:
        return self._net.descriptor_waits

    async def connect(
        self, host: str, port: int, *, timeout_s: float = 10.0, tls: SSLContext | None = None
    ) -> Connection:
        return await self._net.connect(host, port, timeout_s=timeout_s, tls=tls)

    async def listen(
        self,
        host: str,
        port: int,
        *,
        tls: SSLContext | None = None,
        reserve: bool = False,
        clear_too: bool = False,
    ) -> Listener:
        bound = self._bound.pop(Address(host, port), None)
        if bound is not None:
            return bound
        return await self._net.listen(host, port, tls=tls, reserve=reserve, clear_too=clear_too)

    def release(self) -> None:
        """Let go of the addresses that no server took."""
        while self._bound:
            self._bound.popitem()[1].close()
