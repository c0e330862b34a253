"""Some messages of a batch as a batch of their own, for clients that count what they were sent.

A client without acknowledgements by index acknowledges a batch once each of its messages is. An ack set beside the
batch hides messages from it, but does not make it forget them: it would never acknowledge the others.
"""

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.pulsar.batch import encode_batch, iter_batch, open_payload
from weir.wire.pulsar.compression import Compression, compress
from weir.wire.pulsar.message import is_batch, parse_metadata, seal_message, split_message


def cut_entry(entry: Buffer, count: int, wanted: int) -> bytes | None:
    """Of an entry of `count` messages those whose bits are set; None if it cannot be opened, as if encrypted."""
    try:
        parts = split_message(memoryview(entry), verify=False)
        metadata = parse_metadata(parts)
        if not is_batch(metadata):
            return None
        singles = iter_batch(open_payload(metadata, parts.payload), count)
        payload = encode_batch(single for index, single in enumerate(singles) if wanted >> index & 1)
    except WireError:
        return None
    metadata.num_messages_in_batch = wanted.bit_count()
    metadata.uncompressed_size = len(payload)
    return b"".join(seal_message(metadata, compress(Compression(metadata.compression), payload)))
