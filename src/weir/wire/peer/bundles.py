"""Calls about bundles: their hand-over from one broker to another."""

from dataclasses import dataclass
from typing import Any

from weir.model.bundles import BundleName
from weir.model.topics import TopicName
from weir.wire.peer.node import Done
from weir.wire.peer.values import Call, PeerRequest


@dataclass(frozen=True, slots=True)
class GetReady(PeerRequest[Done]):
    """The bundle is about to be yours: these of its topics have clients, who will come as soon as it is."""

    bundle: BundleName
    topics: tuple[TopicName, ...] = ()


CALLS: tuple[Call[Any], ...] = (Call(16, "get_ready", GetReady, Done),)
