"""What readers of ledgers left out because every copy of it is damaged: believed only at the second look, written
down in the metadata, said in the log and counted.

A record stands as long as its ledger. It is made before anything behind the gap is served, so that nothing is ever
left out silently.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, upsert
from weir.model.errors import EntryLostError, MetaError, WireError
from weir.model.ids import LedgerId
from weir.runtime.interfaces import Runtime

log = logging.getLogger(__name__)


class LostRun(NamedTuple):
    """Entries [first, last] of a ledger that nobody has whole."""

    first: int
    last: int
    #: The offsets that they had in their stream, [first_offset, end_offset); -1 where nothing says so.
    first_offset: int
    end_offset: int
    #: When they were first left out (milliseconds since 1970), and what the bookies said.
    found_ms: int
    what: str

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


def encode_runs(runs: tuple[LostRun, ...]) -> bytes:
    return json.dumps({"v": 1, "runs": runs}, separators=(",", ":")).encode()


def decode_runs(data: bytes) -> tuple[LostRun, ...]:
    try:
        return tuple(
            LostRun(int(first), int(last), int(offset), int(end), int(found_ms), str(what))
            for first, last, offset, end, found_ms, what in json.loads(data)["runs"]
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as bad:
        raise WireError(f"a record of lost entries is malformed: {bad!r}") from bad


_CODEC: Codec[tuple[LostRun, ...]] = Codec(encode_runs, decode_runs)


def merged(runs: tuple[LostRun, ...], run: LostRun) -> tuple[LostRun, ...]:
    """With one more, which takes the place of those that it covers; as they are if it is covered, and says no more
    about offsets."""
    for known in runs:
        if (
            known.first <= run.first
            and run.last <= known.last
            and (known.first_offset >= 0 or run.first_offset < 0)
        ):
            return runs
    covered = [known for known in runs if run.first <= known.first and known.last <= run.last]
    run = run._replace(found_ms=min([run.found_ms, *(known.found_ms for known in covered)]))
    return tuple(sorted([*(known for known in runs if known not in covered), run]))


class Losses:
    """The records, as this node has made or read them."""

    def __init__(self, runtime: Runtime, meta: MetaStore, *, pause_s: float) -> None:
        self._runtime = runtime
        self._meta = meta
        self._pause_s = pause_s
        self._known: dict[LedgerId, tuple[LostRun, ...]] = {}

    async def start(self) -> None:
        """Know what was left out before; records whose ledger is gone go, too."""
        listing = await self._meta.list(keys.LOST_ENTRIES)
        for item in listing.items:
            ledger_id = keys.ledger_id_of(item.key)
            if await self._meta.get(keys.ledger(ledger_id)) is None:
                await self._meta.delete(item.key)
            else:
                self._known[ledger_id] = decode_runs(item.value)

    @property
    def entries(self) -> int:
        """How many entries are left out by readers now."""
        return sum(run.entries for runs in self._known.values() for run in runs)

    def of(self, ledger_id: LedgerId) -> tuple[LostRun, ...]:
        """By entry."""
        return self._known.get(ledger_id, ())

    def all(self) -> dict[LedgerId, tuple[LostRun, ...]]:
        return dict(sorted(self._known.items()))

    def is_known(self, ledger_id: LedgerId, entry_id: int) -> bool:
        return any(run.first <= entry_id <= run.last for run in self.of(ledger_id))

    async def second_look(self, read: Callable[[], Awaitable[object]]) -> EntryLostError | None:
        """A moment later, still lost? What damaged the first answer may have been the way from the disk."""
        await self._runtime.clock.sleep(self._pause_s)
        try:
            await read()
        except EntryLostError as lost:
            return lost
        return None

    async def record(
        self, ledger_id: LedgerId, first: int, last: int, what: str, *, offsets: tuple[int, int] = (-1, -1)
    ) -> None:
        """Write down that these entries are left out, durably, unless that is known. MetaError if it cannot be
        now: then they must not be left out yet."""
        run = LostRun(first, last, *offsets, self._runtime.clock.wall_ms(), what)
        if merged(self.of(ledger_id), run) == self.of(ledger_id):
            return
        news = not all(self.is_known(ledger_id, entry) for entry in range(first, last + 1))
        record = await upsert(
            self._meta,
            keys.lost_entries(ledger_id),
            _CODEC,
            lambda known: merged(known or (), run),
            runtime=self._runtime,
        )
        self._known[ledger_id] = record.value
        if not news:
            return
        where = f", offsets {offsets[0]} to {offsets[1] - 1}," if offsets[0] >= 0 else ""
        log.warning(
            "entries %d to %d of ledger %d%s are damaged and left out from now on: %s",
            first,
            last,
            ledger_id,
            where,
            what,
        )

    async def forget(self, ledger_id: LedgerId) -> None:
        """The ledger is deleted. What stays because of a failure goes at the next start."""
        if self._known.pop(ledger_id, None) is not None:
            try:
                await self._meta.delete(keys.lost_entries(ledger_id))
            except MetaError as failure:
                log.info("the record of lost entries of ledger %s stays for now: %s", ledger_id, failure)
