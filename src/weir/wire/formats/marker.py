"""Transaction markers as a stored format: they carry no messages, and each gateway says them in its own words."""

from weir.model.batch import Batch, BatchFormat
from weir.model.message import Message
from weir.model.steps import Steps
from weir.wire.formats.form import Keyed, Translated, not_read, unkeyed


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
