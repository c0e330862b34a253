"""Protobuf messages out of bytes, with nothing but WireError when that fails; moments and durations."""

from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.rocketmq import rocketmq_pb2 as api

__all__ = ["api", "ms_of", "parse", "set_ms"]

#: What a Timestamp or Duration may say, in seconds; about ten thousand years.
_MOST_S = 315_576_000_000


def parse(kind: Any, data: Buffer) -> Any:
    try:
        return kind.FromString(bytes(data))
    except DecodeError as bad:
        raise WireError(f"{kind.DESCRIPTOR.name} cannot be parsed: {bad}") from None


def ms_of(moment: Any) -> int:
    """Of a Timestamp or a Duration, in milliseconds."""
    seconds = max(-_MOST_S, min(int(moment.seconds), _MOST_S))
    return seconds * 1000 + int(moment.nanos) // 1_000_000


def set_ms(moment: Any, ms: int) -> None:
    moment.seconds, rest = divmod(ms, 1000)
    moment.nanos = rest * 1_000_000
