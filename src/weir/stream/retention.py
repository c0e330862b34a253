"""Retention and backlog size of a stream: pure functions of its chain of ledgers.

Retention trims whole closed ledgers only. Backlog sizes assume that the bytes of a ledger are spread evenly over
its offsets; the error is less than one ledger, and the estimate needs no read.
"""

from weir.model.policies import Retention
from weir.model.stream import Chain


def trim_point(chain: Chain, acknowledged_to: int, retention: Retention, now_ms: int, open_bytes: int) -> int:
    """The offset up to which the stream may be trimmed: acknowledged by all, and past retention.

    `acknowledged_to`: every subscription has acknowledged everything before it. A ledger exceeds the retention
    size only if the ledgers after it fill that size: a stream never retains less than the configured size.
    """
    left = sum(span.size_bytes for span in chain.spans) + open_bytes
    point = chain.start_offset
    for span in chain.spans:
        if span.end_offset is None or span.end_offset > acknowledged_to:
            break
        expired = 0 <= retention.time_ms <= now_ms - span.last_ms
        over = 0 <= retention.size_bytes <= left - span.size_bytes
        if not expired and not over:
            break
        left -= span.size_bytes
        point = span.end_offset
    return point


def bytes_from(chain: Chain, offset: int, end_offset: int, open_bytes: int) -> int:
    """Approximate number of bytes between the offset and the end."""
    total = 0
    for first, end, size in _sizes(chain, end_offset, open_bytes):
        if offset <= first:
            total += size
        elif offset < end:
            total += size * (end - offset) // (end - first)
    return total


def offset_keeping(chain: Chain, limit_bytes: int, end_offset: int, open_bytes: int) -> int:
    """The first offset with at most about `limit_bytes` between it and the end."""
    left = limit_bytes
    for first, end, size in reversed(_sizes(chain, end_offset, open_bytes)):
        if size > left:
            return end - (end - first) * left // size
        left -= size
    return chain.start_offset


def _sizes(chain: Chain, end_offset: int, open_bytes: int) -> list[tuple[int, int, int]]:
    """First offset, end and bytes of each ledger that is not empty."""
    sizes = []
    for span in chain.spans:
        end, size = (end_offset, open_bytes) if span.end_offset is None else (span.end_offset, span.size_bytes)
        if end > span.first_offset:
            sizes.append((span.first_offset, end, size))
    return sizes
