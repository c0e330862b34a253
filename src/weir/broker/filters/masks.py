"""Which messages of a batch pass which filter: each batch is looked into once, for all subscriptions of its topic.

A batch that nobody can look into passes every filter: what nobody can judge is delivered, and never dropped.
"""

from collections import OrderedDict
from collections.abc import Callable

from weir.broker.filters.compiled import CompiledFilter, compiled
from weir.broker.filters.conditions import KEY, Head
from weir.model.batch import Batch
from weir.model.bits import bits_at
from weir.model.filters import MessageFilter
from weir.model.steps import STEP_MESSAGES, Steps, finish
from weir.wire.formats.heads import RawHead, reading_heads

#: What one topic remembers of batches: about so many bytes, where a message's head is so many and its payload.
_MOST_BYTES = 4 * 1024 * 1024
_HEAD_BYTES = 512


class _Looked:
    """A batch as filters see it. `heads` None: nobody can look into it."""

    __slots__ = ("heads", "masks", "size")

    def __init__(self, heads: list[Head] | None, size: int) -> None:
        self.heads = heads
        self.size = size
        self.masks: dict[CompiledFilter, int | None] = {}


class Masks:
    """Of one topic."""

    def __init__(self) -> None:
        self._looked: OrderedDict[tuple[int, int], _Looked] = OrderedDict()
        self._bytes = 0

    def known(self, wanted: CompiledFilter, batch: Batch) -> bool:
        """Whether `mask` answers at once."""
        looked = self._looked.get((batch.base_offset, len(batch.payload)))
        return looked is not None and wanted in looked.masks

    def mask(self, wanted: CompiledFilter, batch: Batch) -> int | None:
        """The messages that pass, as bits; None for all of them."""
        looked = self._looked.get((batch.base_offset, len(batch.payload)))
        if looked is not None and wanted in looked.masks:
            return looked.masks[wanted]
        return finish(self.looking(wanted, batch))

    def looking(self, wanted: CompiledFilter, batch: Batch) -> Steps[int | None]:
        """The same in steps, for large batches."""
        looked = self._looked.get((batch.base_offset, len(batch.payload)))
        if looked is None:
            raw = yield from reading_heads(batch)
            looked = _Looked(
                None if raw is None else [head_of(one) for one in raw],
                len(batch.payload) + _HEAD_BYTES * batch.count,
            )
            self._keep(batch, looked)
        if looked.heads is None:
            looked.masks[wanted] = None
            return None
        passing: list[int] = []
        takes, heads = wanted.takes, looked.heads
        for start in range(0, len(heads), STEP_MESSAGES):
            passing += [
                start + index for index, head in enumerate(heads[start : start + STEP_MESSAGES]) if takes(head)
            ]
            if start:
                yield STEP_MESSAGES
        found = None if len(passing) == len(heads) else bits_at(passing, len(heads))
        looked.masks[wanted] = found
        return found

    def _keep(self, batch: Batch, looked: _Looked) -> None:
        self._looked[batch.base_offset, len(batch.payload)] = looked
        self._bytes += looked.size
        while len(self._looked) > 1 and self._bytes > _MOST_BYTES:
            self._bytes -= self._looked.popitem(last=False)[1].size


def head_of(raw: RawHead) -> Head:
    """Of a name that occurs twice the first counts."""
    key, headers = raw
    head: dict[str, bytes | None] = dict(headers)
    if len(head) != len(headers):
        head = dict(reversed(headers))
    head[KEY] = key
    return head


def masks_of(wanted: MessageFilter) -> Callable[[Batch], int | None]:
    """For somebody who looks at each batch once: the messages that pass, as bits; None for all of them."""
    condition = compiled(wanted)
    if condition is None:
        return lambda batch: None
    return lambda batch: Masks().mask(condition, batch)
