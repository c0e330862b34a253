"""The priority of each message of a batch, whatever protocol it came by: the header `weir-priority`."""

from collections.abc import Mapping, Sequence

from weir.broker.dispatch.queue_side import LevelsOf
from weir.model.batch import Batch, BatchFormat
from weir.model.errors import WeirError
from weir.model.priority import PRIORITY
from weir.wire.formats import Format
from weir.wire.kafka import records
from weir.wire.pulsar.compression import Compression
from weir.wire.pulsar.message import parse_metadata, split_message

_NAME = PRIORITY.encode()
#: A longer text is no level.
_MOST_DIGITS = 9


def levels_in(formats: Mapping[BatchFormat, Format]) -> LevelsOf:
    """How to look for them. A batch that cannot be opened has none."""

    def levels_of(batch: Batch) -> Sequence[int] | None:
        try:
            if bytes(batch.payload).find(_NAME) < 0 and not _is_compressed(batch):
                return None  # nearly all
            found = [_level(message.headers) for message in formats[batch.format].split(batch)]
        except WeirError:
            return None
        return found if len(found) == batch.count and any(found) else None

    return levels_of


def _is_compressed(batch: Batch) -> bool:
    """Whether what its messages say cannot be seen from outside."""
    match batch.format:
        case BatchFormat.KAFKA:
            return records.parse_header(batch.payload).compression is not records.Compression.NONE
        case BatchFormat.PULSAR:
            metadata = parse_metadata(split_message(memoryview(batch.payload), verify=False))
            return int(metadata.compression) != int(Compression.NONE)
    return False


def _level(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """What cannot be a level is none; the first that can counts."""
    for name, value in headers:
        if name == PRIORITY and value is not None and len(value) <= _MOST_DIGITS and value.isdigit():
            return int(value)
    return 0
