"""Addresses that are bound before the parts start, and listeners without authentication.

Early binding reports a port in use at once, and makes a free port chosen by the system known to the parts that
announce it. Early clients wait until the server behind the address accepts.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from ssl import SSLContext

from weir.admin.metrics import GatewayFamily
from weir.model.errors import AddressInUseError, ConnectFailedError
from weir.runtime.interfaces import Connection, Listener, Network
from weir.server.addresses import Address
from weir.server.config.tree import Config


@contextmanager
def naming_setting(listener: str) -> Iterator[None]:
    """Add to bind errors the setting that changes the address."""
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
    """A network with some addresses bound already; `listen` passes them to their server."""

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
        """Bind the address and return it with its real port; AddressInUseError if it is in use."""
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
        """Close the bound addresses that no server uses."""
        while self._bound:
            self._bound.popitem()[1].close()


log = logging.getLogger(__name__)

#: The listener for other brokers has its own credentials, and does not start without them.
_NOT_FOR_CLIENTS = "peer"
_SECURE = ("pulsar_tls", "kafka_tls", "amqps", "rocketmq_tls", "https")


def open_listeners(config: Config, addresses: Mapping[str, Address]) -> dict[str, Address]:
    """Listeners that other machines reach and that require no authentication."""
    if config.auth.authenticate and not (config.auth.allow_anonymous and not config.auth.authorise):
        return {}
    asked = _SECURE if config.tls.client_ca and config.tls.client_auth != "optional" else ()
    return {
        name: address
        for name, address in addresses.items()
        if name != _NOT_FOR_CLIENTS and name not in asked and not is_local(address.host)
    }


def warning(config: Config, addresses: Mapping[str, Address]) -> str | None:
    """The warning about open listeners; None if there are none."""
    found = open_listeners(config, addresses)
    if not found:
        return None
    where = ", ".join(f"{name} {address}" for name, address in found.items())
    return (
        f"everybody who reaches {where} may read, write and delete everything: nobody is asked who they are "
        "(set auth.authenticate and auth.authorise, docs/how-to/security.md says how; or listen on 127.0.0.1)"
    )


def open_families(config: Config, addresses: Mapping[str, Address]) -> list[GatewayFamily]:
    """The same as a metrics family, for `weir doctor` and alerts."""
    text = "Listeners that let in everybody who reaches them over a network."
    return [GatewayFamily("weir_open_listeners", "gauge", text, [({}, len(open_listeners(config, addresses)))])]


def log_open(config: Config, addresses: Mapping[str, Address]) -> None:
    told = warning(config, addresses)
    if told is not None:
        log.warning(told)


def is_local(host: str) -> bool:
    """Whether only this machine can connect. A name counts as public, except localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
