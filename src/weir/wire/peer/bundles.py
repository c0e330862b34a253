"""Calls about bundles: their hand-over from one broker to another, and topics that go with all of their parts."""

from dataclasses import dataclass
from typing import Any

from weir.model.bundles import BundleName
from weir.model.topics import TopicName
from weir.wire.peer.node import Done
from weir.wire.peer.values import Call, PeerRequest


@dataclass(frozen=True, slots=True)
class GetReady(PeerRequest[Done]):
    """The bundle is about to be yours: these of its topics have clients, who will come as soon as it is; some of
    these are written to, into ledgers whose ids come after `last_ledger`. Answered when you are ready."""

    bundle: BundleName
    topics: tuple[TopicName, ...] = ()
    written: tuple[TopicName, ...] = ()
    last_ledger: int = 0


@dataclass(frozen=True, slots=True)
class HandOver(PeerRequest[Done]):
    """Give a bundle of yours to another broker, by its id. Answered when that one has it."""

    bundle: BundleName
    to: str


@dataclass(frozen=True, slots=True)
class SplitBundle(PeerRequest[Done]):
    """Make two of a bundle of yours, where the load that you measure is halved."""

    bundle: BundleName


@dataclass(frozen=True, slots=True)
class CheckUnused(PeerRequest[Done]):
    """Say NotAllowedError if somebody is connected to a topic of yours, or to a partition of one."""

    part: TopicName


@dataclass(frozen=True, slots=True)
class ErasePart(PeerRequest[Done]):
    """Close a topic of yours, or a partition of one, which the registry says is being deleted, and delete what it
    holds. NotOwnerError if it is not yours."""

    part: TopicName


@dataclass(frozen=True, slots=True)
class TakeTopic(PeerRequest[Done]):
    """A topic that is about to be yours, in this leader epoch, was left so: its stream's chain as it is in the
    metadata, with its version there; its state, and whether some of it is not written; and how far its open ledger
    was written, if it has one: the offset after the last message, payload bytes, and when that was appended."""

    topic: TopicName
    epoch: int
    chain: bytes
    version: int
    state: bytes
    unsaved: bool = False
    ledger: tuple[int, int, int] | None = None


CALLS: tuple[Call[Any], ...] = (
    Call(16, "get_ready", GetReady, Done),
    Call(17, "hand_over", HandOver, Done),
    Call(18, "split_bundle", SplitBundle, Done),
    Call(19, "check_unused", CheckUnused, Done),
    Call(20, "erase_part", ErasePart, Done),
    Call(21, "take_topic", TakeTopic, Done),
)
