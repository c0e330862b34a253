"""Whether a batch has the records that it claims to have, as far as that is cheap to tell.

To read every record of every batch would cost a broker a fifth of its time. A producer that writes batches wrongly
does so from the first record on, or in their number: the first ones are followed by their sizes, and of a batch
that has no others it is known where they must end.
"""

from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.kafka.records import HEADER_BYTES, BatchHeader, Compression
from weir.wire.kafka.records_read import number

#: Records of a batch that are looked at.
_LOOKED_AT = 4
#: Attributes, two deltas, the sizes of key and value, the number of headers: a byte each.
_LEAST_BYTES = 6


def check_sizes(batch: Buffer, header: BatchHeader) -> None:
    """WireError for an uncompressed batch whose records are not where they should be."""
    if header.attributes & 7 != Compression.NONE:
        return
    data, at, end = memoryview(batch), HEADER_BYTES, header.size
    left = header.records
    if left * (_LEAST_BYTES + 1) > end - at:
        raise WireError(f"a batch claims {left} records in {end - at} bytes")
    looked_at = min(left, _LOOKED_AT)
    try:
        for _ in range(looked_at):
            size, at = number(data, at)
            at += size
            if size < _LEAST_BYTES or at > end:
                raise WireError(f"a record claims {size} bytes, {end - at + size} are left of its batch")
    except IndexError:
        raise WireError("a batch has fewer records than it claims") from None
    if looked_at == left and at != end:
        raise WireError(f"a batch of {left} records has {end - at} bytes more")
