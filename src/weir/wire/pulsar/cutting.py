"""Some messages of a batch as a batch of their own, for clients that count what they were sent.

A client without acknowledgements by index acknowledges a batch once each of its messages is. An ack set beside the
batch hides messages from it, but does not make it forget them: it would never acknowledge the others. Neighbours
are a batch, so that the id of the first and the place in it tell which message is meant, as of every batch.
"""

from typing import NamedTuple

from weir.model.bits import runs_of
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.pulsar.batch import encode_batch, iter_batch, open_payload
from weir.wire.pulsar.compression import Compression, compress
from weir.wire.pulsar.message import is_batch, parse_metadata, seal_message, split_message


class Part(NamedTuple):
    """Messages of an entry that are neighbours, from the one at `first` on, as an entry."""

    first: int
    payload: bytes
    messages: int


#: An entry becomes at most about this many parts when its messages are separated: each costs an encoding.
_MAX_SEPARATED = 512


def cut_entry(entry: Buffer, count: int, wanted: int, *, separate: bool = False) -> list[Part] | None:
    """Of an entry of `count` messages those whose bits are set; None if it cannot be opened, as if encrypted.
    `separate`: neighbors are entries of their own, too; in a very large batch, short runs of neighbors."""
    try:
        parts = split_message(memoryview(entry), verify=False)
        metadata = parse_metadata(parts)
        if not is_batch(metadata):
            return None
        singles = list(iter_batch(open_payload(metadata, parts.payload), count))
    except WireError:
        return None
    found = []
    runs = runs_of(wanted)
    if separate:
        length = -(-wanted.bit_count() // _MAX_SEPARATED)
        runs = [(at, min(at + length, end)) for first, end in runs for at in range(first, end, length)]
    for first, end in runs:
        payload = encode_batch(singles[first:end])
        metadata.num_messages_in_batch = end - first
        metadata.uncompressed_size = len(payload)
        sealed = seal_message(metadata, compress(Compression(metadata.compression), payload))
        found.append(Part(first, b"".join(sealed), end - first))
    return found
