"""Where a client that came by one listener finds another broker."""

from typing import NamedTuple

from weir.broker.api import Owner
from weir.model.errors import NotAllowedError, NotOwnerError

_TLS = "pulsar+ssl:"
_PLAIN = "pulsar:"


class BrokerUrls(NamedTuple):
    """A broker's listeners for this protocol, empty where it has none. A client takes the one for TLS if it
    came so."""

    plain: str = ""
    tls: str = ""


def urls_of(owner: Owner, service_url: str, listener: str = "") -> BrokerUrls:
    """Of the broker that has a topic, for a client that came to `service_url`, or that asks for a listener by its
    name."""
    if listener:
        return _named(owner, listener)
    if owner.here:  # who came to this listener reaches it again
        return _one(service_url)
    urls = BrokerUrls(owner.url("pulsar"), owner.url("pulsar_tls"))
    over_tls = service_url.startswith(_TLS)
    if not (urls.tls if over_tls else urls.plain):
        kind = "for TLS" if over_tls else "without TLS"
        raise NotOwnerError(f"broker {owner.broker_id} has the topic, and no listener {kind} that is known")
    return urls


def _named(owner: Owner, listener: str) -> BrokerUrls:
    url = owner.url(listener)
    if not url.startswith((_TLS, _PLAIN)):
        known = sorted(name for name, url in owner.listeners.items() if url.startswith((_TLS, _PLAIN)))
        raise NotAllowedError(
            f"there is no listener named {listener[:80]!r}",
            hint=f"leave the name out, or use one of these: {', '.join(known) or 'none is known'}",
        )
    return _one(url)


def _one(url: str) -> BrokerUrls:
    return BrokerUrls(tls=url) if url.startswith(_TLS) else BrokerUrls(url)
