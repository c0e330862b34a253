"""Calls of gateways at other brokers: what clients asked of the wrong broker, and questions to producers."""

from dataclasses import dataclass
from typing import Any

from weir.model.half import HalfMessage
from weir.model.topics import TopicName
from weir.wire.peer.values import Call, PeerRequest


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


CALLS: tuple[Call[Any], ...] = (
    Call(96, "gateway", GatewayCall, GatewayAnswer),
    Call(97, "ask_half", AskHalf, HalfAsked),
)
