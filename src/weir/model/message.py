"""A message as every protocol knows it: what a batch of one protocol is translated through for another.

N protocols need N decoders to this and N encoders from it. Only where producer and consumer differ, or
a batch must be opened (to compact it, to hold a part of it back), does a message become one of these.
"""

from collections.abc import Iterable, Sequence

from weir.model.ids import Buffer
from weir.model.value import value

#: The header by which a producer names what it delays, so that it can be cancelled.
DELAY_ID = b"weir-delay-id"
#: Headers by which Kafka's producers delay a message, until a moment or for so long, and end a delay.
DELIVER_AT, DELIVER_AFTER, CANCEL = b"weir-deliver-at", b"weir-deliver-after", b"weir-cancel"
_MAX_ID_BYTES = 256


@value
class Message:
    """`value` None is a tombstone; a header's value may be None, and a name may occur twice."""

    key: bytes | None
    value: Buffer | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    #: When it happened, in the producer's words (milliseconds since 1970); None if it did not say.
    event_ms: int | None = None
    #: When it was published, by the producer's or the broker's clock.
    publish_ms: int = 0
    #: Decides the partition and the order within a key-shared subscription, where that is not the key's business.
    ordering_key: bytes | None = None
    #: What only the protocol of this name can say, opaque to all others.
    native: tuple[str, bytes] | None = None


def delay_id_in(headers: Iterable[tuple[Buffer, Buffer | None]]) -> str | None:
    """The name of a delayed message among its headers; None if it has none that holds."""
    for name, text in headers:
        if name == DELAY_ID:
            if text is None or not 0 < len(text) <= _MAX_ID_BYTES:
                return None
            try:
                return str(text, "utf-8")
            except UnicodeDecodeError:
                return None
    return None
