"""Which messages of a batch pass which filter: each batch is looked into once, for all subscriptions of its topic.

A batch that nobody can look into passes every filter: what nobody can judge is delivered, and never dropped.

Filters compiled: tags as a set, conditions as closures; filters that say the same are one object.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from weir.broker.filters.selector_language import KEY, Head, compile_sql
from weir.model.batch import Batch, bits_at
from weir.model.check import STEP_MESSAGES, Steps, finish
from weir.model.errors import FilterError
from weir.model.subscriptions import ALL_TAGS, TAG_HEADER, MessageFilter
from weir.wire.formats.headers import RawHead, reading_heads

#: Of an expression of tags. RocketMQ has no limit; a filter is stored with its subscription.
MAX_TAG_CHARACTERS = 65_536
MAX_TAGS = 8_192
#: Few filters of more characters are kept compiled: thousands of them would fill the memory.
_LONG_CHARACTERS = 4096


class CompiledFilter:
    """`takes`: whether a message passes, by its head. One object for each text, so that it can be a key."""

    __slots__ = ("source", "takes")

    def __init__(self, source: MessageFilter, takes: Callable[[Head], bool]) -> None:
        self.source = source
        self.takes = takes

    def __str__(self) -> str:
        """As people would say it."""
        tags, sql = self.source.tags, self.source.sql
        return " and ".join(part for part in (f"tags {tags}" if tags else "", sql) if part)


def compiled(wanted: MessageFilter | None) -> CompiledFilter | None:
    """None if it lets everything through. FilterError if it is wrong."""
    if not wanted:
        return None
    sql, tags = wanted.sql.rstrip(), wanted.tags.strip()
    return (_compiled_long if len(sql) + len(tags) > _LONG_CHARACTERS else _compiled_short)(sql, tags)


def _compile(sql: str, tags: str) -> CompiledFilter | None:
    wanted = MessageFilter(sql, tags)
    named = _tags(tags)
    condition = compile_sql(sql) if sql.strip() else None
    if condition is None:
        return None if named is None else CompiledFilter(wanted, _by_tag(named))
    if named is None:
        return CompiledFilter(wanted, lambda head: condition(head) is True)
    has_tag = _by_tag(named)
    return CompiledFilter(wanted, lambda head: has_tag(head) and condition(head) is True)


_compiled_short = lru_cache(maxsize=4096)(_compile)
_compiled_long = lru_cache(maxsize=64)(_compile)


def _by_tag(named: frozenset[bytes]) -> Callable[[Head], bool]:
    return lambda head: head.get(TAG_HEADER) in named


def _tags(text: str) -> frozenset[bytes] | None:
    """`a || b`; None for all. Empty places (`a||||b`) are skipped, as RocketMQ does it."""
    if text in ("", ALL_TAGS):
        return None
    if len(text) > MAX_TAG_CHARACTERS:
        raise FilterError(f"tags of a filter have {len(text)} characters, {MAX_TAG_CHARACTERS} are allowed")
    found: list[bytes] = []
    at = 0
    for part in text.split("||"):
        tag = part.strip()
        if "|" in tag:
            raise FilterError(
                f"the tags are wrong at position {at + 1}: a tag has no bar",
                hint="write them as a || b, or * for all",
                position=at + 1,
            )
        if tag == ALL_TAGS:
            return None
        if tag:
            found.append(tag.encode("utf-8", "surrogatepass"))
        at += len(part) + 2
    if not found:
        raise FilterError(f"the filter {text[:80]!r} names no tag", hint="write them as a || b, or * for all")
    if len(found) > MAX_TAGS:
        raise FilterError(f"a filter names {len(found)} tags, {MAX_TAGS} are allowed")
    return frozenset(found)


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
