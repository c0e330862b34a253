"""The priority of each message of a batch, whatever protocol it came by: the header `weir-priority`."""

from collections.abc import Mapping, Sequence

from weir.broker.dispatch.queue_side import LevelsOf
from weir.model.batch import Batch, BatchFormat
from weir.model.errors import WeirError
from weir.wire.amqp.message import PRIORITY
from weir.wire.formats import Format

_NAME = PRIORITY.encode()
#: A longer text is no level.
_MOST_DIGITS = 9


def levels_in(formats: Mapping[BatchFormat, Format]) -> LevelsOf:
    """How to look for them. A batch that cannot be opened has none."""

    def levels_of(batch: Batch) -> Sequence[int] | None:
        if batch.format is BatchFormat.MESSAGES and bytes(batch.payload).find(_NAME) < 0:
            return None  # nearly all: these are never compressed
        try:
            found = [_level(message.headers) for message in formats[batch.format].split(batch)]
        except WeirError:
            return None
        return found if len(found) == batch.count and any(found) else None

    return levels_of


def _level(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """What cannot be a level is none; the first that can counts."""
    for name, value in headers:
        if name == PRIORITY and value is not None and len(value) <= _MOST_DIGITS and value.isdigit():
            return int(value)
    return 0
