"""A stored batch as the payload of a ledger entry: a small header, then the producer's bytes as they came.

    format u8 | flags u8 | origin length u16 | count u32 | base offset u64 | append ms i64 |
    origin sequence i64 | held ledger u64 | held entry u64 |
    stamp producer id i64, epoch i16, sequence i32 | origin producer (utf-8) | payload

The entry around it has the checksum, so the batch needs none of its own. Fields that a flag bit
leaves out are not stored. What is stamped has no origin: in its place, of length 4, stands the checksum (u32) of
what the producer sent, if it is known. An origin length of 0xFFFF says that the batch was not sent but moved: no
name follows, and the sequence is the offset that it was moved from. One of 0xFFFE says that it is a half message:
the sequence is when it was prepared (ms), and in the name's place stand

    group length u16 | recovery ms u64 | producer group (utf-8)

One of 0xFFFD says that it is for one subscription alone: the sequence is the length of its name, which follows.
"""

from struct import Struct

from weir.model.batch import Addressed, Batch, BatchFlags, BatchFormat, HeldId, MovedFrom, Origin, Prepared, Stamp
from weir.model.check import check
from weir.model.errors import WireError
from weir.model.ids import Buffer

_FIXED = Struct("<BBHIQq")
_SEQUENCE = Struct("<q")
_HELD = Struct("<QQ")
_STAMP = Struct("<qhi")
_CHECKSUM = Struct("<I")

#: Header flags of this layout, above those of `BatchFlags`.
_HAS_ORIGIN = 0x80
_HAS_HELD = 0x40
_HAS_STAMP = 0x20
_MODEL_FLAGS = 0x1F

#: Instead of a name's length.
_MOVED = 0xFFFF
_HALF = 0xFFFE
_ADDRESSED = 0xFFFD
_PREPARED = Struct("<HQ")
#: What stood there before, as a name that a producer could have as well. Only transactions have batches moved,
#: which only Kafka's clients had, whose batches never name who sent them: a batch of Kafka's with this name was
#: moved, and one of Pulsar's was sent by somebody.
_MOVED_BEFORE = " committed"

MAX_COUNT = 1 << 24
_MAX_OFFSET = (1 << 63) - 1


def encode_batch(batch: Batch) -> list[Buffer]:
    """The batch as pieces to be written one after the other; the payload is not copied."""
    return [encode_head(batch, batch.base_offset, batch.append_ms), batch.payload]


def encode_head(batch: Batch, base_offset: int, append_ms: int) -> bytes:
    """What stands before the payload, once it is known where the batch goes and when."""
    if batch.origin is None and batch.held is None and batch.stamp is None:
        return _FIXED.pack(batch.format, batch.flags, 0, batch.count, base_offset, append_ms)
    layout_flags = int(batch.flags)
    tail = b""
    name = b""
    name_bytes = 0
    origin = batch.origin
    if isinstance(origin, Origin):
        name = origin.producer.encode()
        name_bytes = len(name)
        check(name_bytes < _ADDRESSED, "a producer's name has a length that can be stored")
        layout_flags |= _HAS_ORIGIN
        tail = _SEQUENCE.pack(origin.sequence)
    elif isinstance(origin, Prepared):
        group = origin.group.encode()
        name = _PREPARED.pack(len(group), origin.recovery_ms) + group
        name_bytes = _HALF
        layout_flags |= _HAS_ORIGIN
        tail = _SEQUENCE.pack(origin.prepared_ms)
    elif isinstance(origin, Addressed):
        name = origin.subscription.encode()
        name_bytes = _ADDRESSED
        layout_flags = int(batch.flags & ~BatchFlags.PRIVATE) | _HAS_ORIGIN
        tail = _SEQUENCE.pack(len(name))
    elif origin is not None:
        name_bytes = _MOVED
        layout_flags |= _HAS_ORIGIN
        tail = _SEQUENCE.pack(origin.offset)
    if batch.held is not None:
        layout_flags |= _HAS_HELD
        tail += _HELD.pack(batch.held.ledger, batch.held.entry)
    if batch.stamp is not None:
        layout_flags |= _HAS_STAMP
        tail += _STAMP.pack(batch.stamp.producer_id, batch.stamp.epoch, batch.stamp.sequence)
        if origin is None and batch.stamp.checksum:
            name = _CHECKSUM.pack(batch.stamp.checksum)
            name_bytes = len(name)
    fixed = _FIXED.pack(batch.format, layout_flags, name_bytes, batch.count, base_offset, append_ms)
    return fixed + tail + name


def decode_batch(data: Buffer) -> Batch:
    """The batch in `data`; its payload is a slice, not a copy."""
    view = memoryview(data)
    if len(view) < _FIXED.size:
        raise WireError(f"a stored batch needs {_FIXED.size} bytes of header, {len(view)} are there")
    tag, layout_flags, name_bytes, count, base_offset, append_ms = _FIXED.unpack_from(view)
    if not 0 < count <= MAX_COUNT or base_offset > _MAX_OFFSET - count:
        raise WireError(f"a stored batch claims {count} messages at offset {base_offset}")
    place = _FIXED.size
    place, sequence = _optional(view, place, _SEQUENCE, bool(layout_flags & _HAS_ORIGIN))
    place, held = _optional(view, place, _HELD, bool(layout_flags & _HAS_HELD))
    place, stamp = _optional(view, place, _STAMP, bool(layout_flags & _HAS_STAMP))
    if sequence is not None and name_bytes == _HALF:
        return _decode_half(view, place, held, stamp)
    if sequence is not None and name_bytes == _ADDRESSED:
        return _decode_addressed(view, place, sequence[0], held, stamp)
    is_moved = sequence is not None and name_bytes == _MOVED
    if is_moved:
        name_bytes = 0
    if place + name_bytes > len(view):
        raise WireError("a stored batch ends within its producer's name")
    checksum = 0
    if stamp is not None and sequence is None and name_bytes == _CHECKSUM.size:
        (checksum,) = _CHECKSUM.unpack_from(view, place)
    try:
        name = "" if sequence is None else str(view[place : place + name_bytes], "utf-8")
        known = BatchFormat(tag)
        if sequence is not None and name == _MOVED_BEFORE and known is BatchFormat.KAFKA:
            is_moved = True
    except ValueError as bad:
        raise WireError(f"a stored batch is malformed: {bad}") from bad
    return Batch(
        base_offset=base_offset,
        count=count,
        format=known,
        append_ms=append_ms,
        payload=view[place + name_bytes :],
        flags=BatchFlags(layout_flags & _MODEL_FLAGS),
        origin=None if sequence is None else MovedFrom(sequence[0]) if is_moved else Origin(name, sequence[0]),
        held=None if held is None else HeldId(*held),
        stamp=None if stamp is None else Stamp(stamp[0], stamp[1], stamp[2], checksum),
    )


def _decode_half(
    view: memoryview, place: int, held: tuple[int, ...] | None, stamp: tuple[int, ...] | None
) -> Batch:
    """A half message, whose origin begins at this place."""
    tag, layout_flags, _, count, base_offset, append_ms = _FIXED.unpack_from(view)
    (prepared_ms,) = _SEQUENCE.unpack_from(view, _FIXED.size)
    place, sizes = _optional(view, place, _PREPARED, True)
    group_bytes, recovery_ms = sizes or (0, 0)
    if place + group_bytes > len(view):
        raise WireError("a half message ends within its group's name")
    try:
        group, known = str(view[place : place + group_bytes], "utf-8"), BatchFormat(tag)
    except ValueError as bad:
        raise WireError(f"a half message is malformed: {bad}") from bad
    return Batch(
        base_offset=base_offset,
        count=count,
        format=known,
        append_ms=append_ms,
        payload=view[place + group_bytes :],
        flags=BatchFlags(layout_flags & _MODEL_FLAGS),
        origin=Prepared(group, prepared_ms, recovery_ms),
        held=None if held is None else HeldId(*held),
        stamp=None if stamp is None else Stamp(*stamp),
    )


def _decode_addressed(
    view: memoryview,
    place: int,
    name_bytes: int,
    held: tuple[int, ...] | None,
    stamp: tuple[int, ...] | None,
) -> Batch:
    """A batch for one subscription, whose name begins at this place."""
    tag, layout_flags, _, count, base_offset, append_ms = _FIXED.unpack_from(view)
    if not 0 <= name_bytes <= len(view) - place:
        raise WireError("a batch for one subscription ends within its name")
    try:
        name, known = str(view[place : place + name_bytes], "utf-8"), BatchFormat(tag)
    except ValueError as bad:
        raise WireError(f"a batch for one subscription is malformed: {bad}") from bad
    return Batch(
        base_offset=base_offset,
        count=count,
        format=known,
        append_ms=append_ms,
        payload=view[place + name_bytes :],
        flags=BatchFlags(layout_flags & _MODEL_FLAGS) | BatchFlags.PRIVATE,
        origin=Addressed(name),
        held=None if held is None else HeldId(*held),
        stamp=None if stamp is None else Stamp(*stamp),
    )


def _optional(view: memoryview, place: int, layout: Struct, there: bool) -> tuple[int, tuple[int, ...] | None]:
    if not there:
        return place, None
    if place + layout.size > len(view):
        raise WireError("a stored batch ends within its header")
    return place + layout.size, layout.unpack_from(view, place)
