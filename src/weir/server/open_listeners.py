"""Which listeners let in everybody who reaches them over a network: told when they are opened."""

import logging
from collections.abc import Mapping
from ipaddress import ip_address

from weir.admin.metrics import GatewayFamily
from weir.server.addresses import Address
from weir.server.config.tree import Config

log = logging.getLogger(__name__)

#: The listener for other brokers has credentials of its own, and does not start without.
_NOT_FOR_CLIENTS = "peer"
_SECURE = ("pulsar_tls", "kafka_tls", "amqps", "rocketmq_tls", "https")


def open_listeners(config: Config, addresses: Mapping[str, Address]) -> dict[str, Address]:
    """Those that other machines reach and that ask nobody who they are."""
    if config.auth.authenticate and not (config.auth.allow_anonymous and not config.auth.authorise):
        return {}
    asked = _SECURE if config.tls.client_ca and config.tls.client_auth != "optional" else ()
    return {
        name: address
        for name, address in addresses.items()
        if name != _NOT_FOR_CLIENTS and name not in asked and not is_local(address.host)
    }


def warning(config: Config, addresses: Mapping[str, Address]) -> str | None:
    """What to tell whoever has started it; None if all is well."""
    found = open_listeners(config, addresses)
    if not found:
        return None
    where = ", ".join(f"{name} {address}" for name, address in found.items())
    return (
        f"everybody who reaches {where} may read, write and delete everything: nobody is asked who they are "
        "(set auth.authenticate and auth.authorise, docs/how-to/security.md says how; or listen on 127.0.0.1)"
    )


def open_families(config: Config, addresses: Mapping[str, Address]) -> list[GatewayFamily]:
    """The same, as a family of the metrics page: what `weir doctor` and alerts look at."""
    text = "Listeners that let in everybody who reaches them over a network."
    return [GatewayFamily("weir_open_listeners", "gauge", text, [({}, len(open_listeners(config, addresses)))])]


def log_open(config: Config, addresses: Mapping[str, Address]) -> None:
    told = warning(config, addresses)
    if told is not None:
        log.warning(told)


def is_local(host: str) -> bool:
    """Whether only this machine comes there. A name is taken for one that others can reach, but for localhost."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
