"""Changes of a stream's small state as the payload of a ledger entry: key, and value or none."""

from collections.abc import Mapping
from struct import Struct, error

from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer

_HEADER = Struct("<BI")
_RECORD = Struct("<HI")
_VERSION = 1
#: The length that stands for "deleted".
_GONE = 0xFFFFFFFF


def encode_changes(changes: Mapping[str, bytes | None]) -> bytes:
    """One entry with all the changes; None deletes a key."""
    parts = [_HEADER.pack(_VERSION, len(changes))]
    for key, value in changes.items():
        name = key.encode()
        parts += [_RECORD.pack(len(name), _GONE if value is None else len(value)), name, value or b""]
    return b"".join(parts)


def decode_changes(data: Buffer) -> dict[str, bytes | None]:
    """The changes in `data`, in their order."""
    view = memoryview(data)
    changes: dict[str, bytes | None] = {}
    try:
        version, count = _HEADER.unpack_from(view)
        if version != _VERSION:
            raise UnknownVersionError(f"stream state has version {version}", hint="written by a newer Weir?")
        place = _HEADER.size
        for _ in range(count):
            name_bytes, value_bytes = _RECORD.unpack_from(view, place)
            start = place + _RECORD.size + name_bytes
            place = start if value_bytes == _GONE else start + value_bytes
            if place > len(view):
                raise WireError("stream state ends within a record")
            key = str(view[start - name_bytes : start], "utf-8")
            changes[key] = None if value_bytes == _GONE else bytes(view[start:place])
    except (error, UnicodeDecodeError) as bad:
        raise WireError(f"stream state is malformed: {bad}") from bad
    if place != len(view):
        raise WireError(f"stream state has {len(view) - place} bytes too many")
    return changes
