"""Requests of one connection that are not answered yet, each with its place in the order of answers."""

from collections.abc import Coroutine
from typing import Any

from weir.gateway.kafka.registry import HANDLERS
from weir.model.ids import Buffer

#: The key of a slot whose frame is a bare SASL token.
BARE = -1


class Slot:
    """A request's place in the order of answers."""

    __slots__ = (
        "api_key",
        "client_id",
        "correlation_id",
        "done",
        "frame",
        "looked_at",
        "opening",
        "out",
        "queued",
        "size",
        "version",
    )

    def __init__(  # noqa: PLR0917 - called once per request, by position
        self, api_key: int, version: int, correlation_id: int, client_id: str, frame: memoryview, size: int
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        #: Its body, until that is decoded.
        self.frame: memoryview | None = frame
        #: Of the whole frame.
        self.size = size
        #: Whether it was looked at what it needs, before its turn.
        self.looked_at = False
        #: What must be waited for before a pipelined request can be decided.
        self.opening: Coroutine[Any, Any, None] | None = None
        self.done = False
        self.out: list[Buffer] = []
        #: Bytes of `out` that wait for earlier answers.
        self.queued = 0


def stores(slot: Slot) -> bool:
    """Whether the request stores something, though nobody may wait for its answer."""
    handler = HANDLERS.get(slot.api_key)
    return handler is not None and handler.pipelined
