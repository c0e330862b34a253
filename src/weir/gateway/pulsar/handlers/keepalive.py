"""PING and PONG."""

from weir.gateway.pulsar.registry import at_once
from weir.gateway.pulsar.session import Session
from weir.wire.pulsar import hot
from weir.wire.pulsar.proto import api


@at_once(api.CommandPing)
def ping(_session: Session, _command: api.CommandPing) -> bytes:
    return hot.PONG


@at_once(api.CommandPong)
def pong(_session: Session, _command: api.CommandPong) -> None:
    """Having been heard is enough."""
