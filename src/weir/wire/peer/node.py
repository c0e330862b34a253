"""Calls about a broker as a whole."""

from dataclasses import dataclass
from typing import Any

from weir.model.load import BrokerLoad
from weir.wire.load import decode_load, encode_load
from weir.wire.peer.values import Call, PeerRequest, ValueCodec


@dataclass(frozen=True, slots=True)
class Done:
    """It is done, and there is nothing to say about it."""


@dataclass(frozen=True, slots=True)
class Ping(PeerRequest[Done]):
    """Are you there? Answered by every broker, also a busy one."""


@dataclass(frozen=True, slots=True)
class ReportLoad(PeerRequest[BrokerLoad]):
    """How much work have you? Asked by whoever balances the cluster."""


CALLS: tuple[Call[Any], ...] = (
    Call(1, "ping", Ping, Done),
    Call(2, "load", ReportLoad, BrokerLoad, ValueCodec(encode_load, decode_load)),
)
