"""Weir's own format, for protocols that send one message at a time (`weir.wire.messages`)."""

from collections.abc import Sequence

from weir.model.batch import Batch, BatchFormat
from weir.model.errors import WireError
from weir.model.message import Message, delay_id_in
from weir.model.steps import Steps
from weir.wire.formats.form import Keyed, Translated, unkeyed
from weir.wire.messages import decode_messages, encode_messages


class MessagesFormat:
    tag = BatchFormat.MESSAGES

    def split(self, batch: Batch) -> list[Message]:
        return decode_messages(batch.payload)

    def keys(self, batch: Batch) -> Sequence[bytes | None] | None:
        """One for each message: they were sent one by one, and met in a batch by chance."""
        found = self._messages(batch)
        return (
            None if found is None else [one.key if one.ordering_key is None else one.ordering_key for one in found]
        )

    def keyed(self, batch: Batch) -> list[Keyed]:
        found = self._messages(batch)
        return unkeyed(batch) if found is None else [(one.key, one.value is not None) for one in found]

    def delay_id(self, batch: Batch) -> str | None:
        found = self._messages(batch)
        if found is None or len(found) != 1:
            return None
        return delay_id_in([(name.encode(), value) for name, value in found[0].headers])

    def opened_size(self, batch: Batch) -> int:
        return len(batch.payload)

    def own(self, batch: Batch, wanted: int | None) -> Translated:
        """Which messages are wanted is for the reader to heed: each is acknowledged on its own."""
        return Translated([batch.payload], batch.count)

    def join(self, batch: Batch, messages: list[Message], wanted: int | None) -> Steps[Translated]:
        yield len(messages)
        return Translated([encode_messages(messages)], len(messages))

    def _messages(self, batch: Batch) -> list[Message] | None:
        """One for each offset; None if it cannot be opened."""
        try:
            found = decode_messages(batch.payload)
        except WireError:
            return None
        return found if len(found) == batch.count else None
