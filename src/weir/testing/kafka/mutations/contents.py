"""Promises about deleted beginnings and compaction broken on purpose (see `kafka_mutations`)."""

from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pyroaring import BitMap64

from weir.broker.topics.topic_admin import TopicAdmin
from weir.model.batch import Batch
from weir.stream.compaction import CompactedView
from weir.testing.kafka.checkers import contents
from weir.testing.kafka.mutations.entered import IDEMPOTENT, NOBODY, QUICK_STATE, mutation
from weir.wire.formats.table import kafka_records_in_steps

_DELETES = {**IDEMPOTENT, "deletes": True, "readers": 3}
_TABLE = {**NOBODY, "table": True, "messages": 40, "streams": QUICK_STATE, "readers": 0}


@mutation("deleted-stays", contents.deleted_is_not_served, **_DELETES)
def _deleted_stays() -> Iterator[None]:
    """The deletion of records is answered, and nothing is deleted."""

    async def look_only(self: TopicAdmin, offset: int) -> None:
        await self._compaction.ended()

    with patch.object(TopicAdmin, "delete_before", look_only):
        yield


@mutation("too-much-deleted", contents.only_deleted_is_gone, **_DELETES)
def _too_much_deleted() -> Iterator[None]:
    """The record that is to be the first one is deleted, too."""
    delete_before = TopicAdmin.delete_before

    async def one_more(self: TopicAdmin, offset: int) -> None:
        await delete_before(self, min(offset + 1, self.topic.end_offset))

    with patch.object(TopicAdmin, "delete_before", one_more):
        yield


@mutation("first-value-kept", contents.the_last_value_is_kept, **_TABLE)
def _first_value_kept() -> Iterator[None]:
    """Compaction keeps the first value of each key that it meets."""

    async def first(self: CompactedView, horizon: int, keyed_of: Any, rules: Any) -> tuple[BitMap64, BitMap64]:
        found: dict[bytes, int] = {}
        async with aclosing(self._batches(horizon)) as batches:
            async for batch in batches:
                for index, (key, _) in enumerate(keyed_of(batch)):
                    found.setdefault(key, batch.base_offset + index)
        return BitMap64(found.values()), BitMap64()

    with patch.object(CompactedView, "_latest", first):
        yield


@mutation("rows-moved", contents.rows_stay_where_they_were, **_TABLE)
def _rows_moved() -> Iterator[None]:
    """What is left of a batch that compaction has thinned out is told at the offsets behind."""

    def behind(batch: Batch, wanted: int | None = None) -> Any:
        thinned = wanted is not None and wanted.bit_count() < batch.count
        moved = replace(batch, base_offset=batch.base_offset + 1) if thinned else batch
        return kafka_records_in_steps(moved, wanted)

    with patch("weir.gateway.kafka.fetch.fetch.kafka_records_in_steps", behind):
        yield
