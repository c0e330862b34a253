"""Transaction markers as a stored format: they carry no messages, and each gateway says them in its own words.

A transaction's marker as the log keeps it: how it ended is in the batch's flags, whose it is in its stamp.
"""

from struct import Struct, error

from weir.model.batch import Batch, BatchFormat
from weir.model.check import Steps
from weir.model.errors import UnknownVersionError, WireError
from weir.model.ids import Buffer
from weir.model.messages import Message
from weir.wire.formats.format import Keyed, Translated, not_read, unkeyed


class MarkerFormat:
    tag = BatchFormat.MARKER

    def split(self, batch: Batch) -> list[Message]:
        raise not_read(self.tag)

    def keys(self, batch: Batch) -> None:
        return None

    def keyed(self, batch: Batch) -> list[Keyed]:
        return unkeyed(batch)

    def delay_id(self, batch: Batch) -> str | None:
        return None

    def opened_size(self, batch: Batch) -> int:
        return len(batch.payload)

    def own(self, batch: Batch, wanted: int | None) -> Translated:
        raise not_read(self.tag)

    def join(self, batch: Batch, messages: list[Message], wanted: int | None) -> Steps[Translated]:
        raise not_read(self.tag)


VERSION = 1
_MARKER = Struct("<Bq")  # version, when it was decided (milliseconds since 1970)


def encode_marker(decided_ms: int) -> bytes:
    return _MARKER.pack(VERSION, decided_ms)


def decode_marker(data: Buffer) -> int:
    """When the transaction was decided; WireError if it is no marker."""
    try:
        version, decided_ms = _MARKER.unpack(data)
    except error as bad:
        raise WireError(f"a marker is malformed: {bad}") from bad
    if version != VERSION:
        raise UnknownVersionError(f"a marker of version {version}", hint="of a newer Weir?")
    moment: int = decided_ms
    return moment
