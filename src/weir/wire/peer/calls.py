"""Calls about bundles: their hand-over from one broker to another, and topics that go with all of their parts.

Calls of gateways at other brokers: what clients asked of the wrong broker, and questions to producers.

The admin call: a request of the admin API that another broker has to answer, since it owns what it is about.

Calls about a broker as a whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.model.cluster import BrokerLoad, BundleName
from weir.model.messages import HalfMessage
from weir.model.topics import TopicName
from weir.wire.broker_load import decode_load, encode_load
from weir.wire.peer.protocol import Call, PeerRequest, ValueCodec


@dataclass(frozen=True, slots=True)
class Done:
    """It is done, and there is nothing to say about it."""


@dataclass(frozen=True, slots=True)
class Ping(PeerRequest[Done]):
    """Are you there? Answered by every broker, also a busy one."""


@dataclass(frozen=True, slots=True)
class ReportLoad(PeerRequest[BrokerLoad]):
    """How much work have you? Asked by whoever balances the cluster."""


_NODE_CALLS: tuple[Call[Any], ...] = (
    Call(1, "ping", Ping, Done),
    Call(2, "load", ReportLoad, BrokerLoad, ValueCodec(encode_load, decode_load)),
)


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """As the admin API answers it over HTTP."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdminCall(PeerRequest[AdminAnswer]):
    """A request of somebody whom the asking broker has authenticated as `role`; what the role may do, the
    answering one decides. `path` and `query` are as they came, percent-encoded."""

    role: str
    method: str
    path: str
    query: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


_ADMINISTRATION_CALLS: tuple[Call[Any], ...] = (Call(64, "admin", AdminCall, AdminAnswer),)


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """Messages of the gateway's protocol, as the client would get them."""

    messages: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayCall(PeerRequest[GatewayAnswer]):
    """A call of a client whom the asking broker has authenticated as `role`; what the role may do, the answering
    one decides. `body` is as the client sent it; `about`: names that the asker knows and the body does not say."""

    gateway: str
    method: str
    role: str
    client: str
    body: bytes = b""
    wait_ms: int = 0
    about: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HalfAsked:
    """`asked`: whether somebody was there to be asked."""

    asked: bool


@dataclass(frozen=True, slots=True)
class AskHalf(PeerRequest[HalfAsked]):
    """Ask a live producer of the group, of those that are connected to you, what became of a half message of mine.
    `batch`: as batches are stored."""

    topic: TopicName
    message: HalfMessage
    batch: bytes


_GATEWAY_CALLS: tuple[Call[Any], ...] = (
    Call(96, "gateway", GatewayCall, GatewayAnswer),
    Call(97, "ask_half", AskHalf, HalfAsked),
)


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


_BUNDLE_CALLS: tuple[Call[Any], ...] = (
    Call(16, "get_ready", GetReady, Done),
    Call(17, "hand_over", HandOver, Done),
    Call(18, "split_bundle", SplitBundle, Done),
    Call(19, "check_unused", CheckUnused, Done),
    Call(20, "erase_part", ErasePart, Done),
    Call(21, "take_topic", TakeTopic, Done),
)

CALLS: tuple[Call[Any], ...] = (*_NODE_CALLS, *_BUNDLE_CALLS, *_ADMINISTRATION_CALLS, *_GATEWAY_CALLS)
