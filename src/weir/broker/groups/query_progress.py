"""What a query says of itself when it keeps its position: which batch it did last, how fast, and what it missed.

It comes as the metadata of the position, as JSON with a mark; metadata of other consumer groups is theirs alone.
"""

import json

from weir.broker.api import QueryProgress
from weir.model.errors import WireError
from weir.wire.snapshots.positions import decode_position

_MARK = '{"weir.query"'
_MOST = 1 << 53


def parse_progress(metadata: str) -> QueryProgress | None:
    """None if the metadata is not a query's."""
    if not metadata.startswith(_MARK):
        return None
    try:
        said = json.loads(metadata)
    except (ValueError, RecursionError):
        return None
    batch, rows, lost = (_count(said.get(name)) for name in ("batch", "rows", "lost"))
    rate = said.get("rowsPerSecond")
    known = isinstance(rate, int | float) and 0 <= rate < _MOST
    return QueryProgress(batch, rows, float(rate) if known else 0.0, lost, said.get("retain") is True)


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < _MOST else 0


def progress_of_commit(data: bytes | None) -> QueryProgress | None:
    """Of a group's position as it is stored."""
    try:
        return None if data is None else parse_progress(decode_position(data).said.metadata)
    except WireError:
        return None  # who asks for the position itself is told
