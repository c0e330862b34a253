"""Delivery tags of one channel: what each stands for, in the order of delivery."""

from weir.gateway.amqp.channel.taken import Taken
from weir.gateway.amqp.errors import precondition_failed

#: Where a message came from, and its offset there.
Pending = tuple[Taken, int]


class Unacked:
    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_tag(self) -> int:
        """A tag for a message that is not to be acknowledged."""
        self._last += 1
        return self._last

    def add(self, taken: Taken, offset: int) -> int:
        """A message is delivered; its tag."""
        self._last = tag = self._last + 1
        self._pending[tag] = (taken, offset)
        return tag

    def take(self, tag: int, *, multiple: bool) -> list[tuple[int, Pending]]:
        """Those that the client means, with their tags, which mean nothing from now on. 406 for a tag that is not
        there; with `multiple`, 0 is all."""
        pending = self._pending
        if not multiple:
            found = pending.pop(tag, None)
            if found is None:
                raise precondition_failed(f"unknown delivery tag {tag}")
            return [(tag, found)]
        if tag == 0:
            return self.take_all()
        if tag not in pending:
            raise precondition_failed(f"unknown delivery tag {tag}")
        taken: list[tuple[int, Pending]] = []
        for known in pending:
            if known > tag:
                break
            taken.append((known, pending[known]))
        for known, _ in taken:
            del pending[known]
        return taken

    def take_each(self, tags: list[int]) -> tuple[list[tuple[Taken, int, int]], int | None]:
        """The messages of these tags, up to the first that is not there, which is answered too: what lies behind
        one another in one queue is one run [first, end)."""
        take = self._pending.pop
        runs: list[tuple[Taken, int, int]] = []
        before: Taken | None = None
        first = end = 0
        unknown = None
        for tag in tags:
            found = take(tag, None)
            if found is None:
                unknown = tag
                break
            taken, offset = found
            if taken is before and offset == end:
                end += 1
                continue
            if before is not None:
                runs.append((before, first, end))
            before, first, end = taken, offset, offset + 1
        if before is not None:
            runs.append((before, first, end))
        return runs, unknown

    def take_all(self) -> list[tuple[int, Pending]]:
        taken, self._pending = list(self._pending.items()), {}
        return taken

    def put_back(self, taken: list[tuple[int, Pending]]) -> None:
        """What was settled in a transaction that did not happen: its tags mean something again."""
        self._pending = dict(sorted([*taken, *self._pending.items()], key=lambda each: each[0]))
