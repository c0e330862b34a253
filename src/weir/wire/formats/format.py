"""What the rest of Weir asks of a stored format: one object for each, registered in `weir.wire.formats.table`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from weir.model.batch import Batch, BatchFormat
from weir.model.check import Steps
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.model.messages import Message

#: A message as compaction sees it: its key, and whether it has a value.
Keyed = tuple[bytes | None, bool]
#: One key for a whole batch, one for each message, or None where nobody can tell.
Keys = bytes | Sequence[bytes | None] | None


class Translated(NamedTuple):
    """A batch as the readers of one format read it, in pieces. `messages`: how many they find in it."""

    pieces: list[Buffer]
    messages: int


class Format(Protocol):
    """`split` raises WireError for what cannot be opened; the other questions have an answer for every batch."""

    tag: BatchFormat

    def split(self, batch: Batch) -> Iterable[Message]:
        """The messages, one for each offset; or a single one that stands for all of them. They may be read one by
        one while they are asked for, and fail then."""

    def keys(self, batch: Batch) -> Keys:
        """What decides the consumers of the messages on a key-shared subscription."""

    def keyed(self, batch: Batch) -> Sequence[Keyed]:
        """What compaction needs to know, for each offset."""

    def delay_id(self, batch: Batch) -> str | None:
        """The name under which a held batch can be cancelled, if its one message has one."""

    def opened_size(self, batch: Batch) -> int:
        """About how many bytes the messages have when they are split, without splitting them."""

    def own(self, batch: Batch, wanted: int | None) -> Translated:
        """A batch of this format for readers of it: as it came, where all of it is wanted. `wanted`: a bit per
        message that is to be seen (None: all)."""

    def join(self, batch: Batch, messages: list[Message], wanted: int | None) -> Steps[Translated]:
        """A batch of another format, split into these messages, for readers of this one."""


def unkeyed(batch: Batch) -> list[Keyed]:
    """Of a batch that compaction cannot look into: nothing is kept by key, and nothing goes."""
    return [(None, True)] * batch.count


def not_read(tag: BatchFormat) -> WireError:
    return WireError(f"batches in the form {tag.name} have no readers of their own")
