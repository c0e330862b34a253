"""Replays in the metadata: what was asked for, by whom, how far it is. The store is asked each time."""

from collections.abc import Sequence
from dataclasses import replace

from weir.broker.api import ReplayStep
from weir.meta import keys
from weir.meta.interfaces import MetaStore
from weir.meta.update import Codec, read, upsert
from weir.model.errors import NotAllowedError, ReplayNotFoundError, TooManyError
from weir.model.replays import Replay, ReplayState
from weir.model.topics import TopicName
from weir.runtime import Runtime
from weir.wire.replays import decode_replay, encode_replay

REPLAY: Codec[Replay] = Codec(encode_replay, decode_replay)

#: Kept at the most; of those that have ended, the oldest goes first.
_MAX_REPLAYS = 1_000
_ENDED = (ReplayState.DONE, ReplayState.CANCELLED)


class Replays:
    """Fills `api.Replays`."""

    def __init__(self, meta: MetaStore, runtime: Runtime) -> None:
        self._meta = meta
        self._runtime = runtime

    async def list(self, topic: TopicName | None = None) -> Sequence[Replay]:
        within = "" if topic is None else f"{topic.namespace}/{topic.local}/"
        found = await self._meta.list(f"{keys.REPLAYS}{within}")
        listed = [decode_replay(item.value) for item in found.items]
        return sorted(listed, key=lambda one: (one.created_ms, one.id))

    async def get(self, topic: TopicName, replay: str) -> Replay:
        found = await read(self._meta, keys.replay(topic, replay), REPLAY)
        if found is None:
            raise _none(topic, replay)
        return found.value

    async def begin(self, wanted: Replay) -> Replay:
        await self._make_room()
        now_ms = self._runtime.clock.wall_ms()
        new = replace(wanted, created_ms=now_ms, updated_ms=now_ms, state=ReplayState.SELECTING)

        def made(current: Replay | None) -> Replay:
            if current is None:
                return new
            if replace(current, created_ms=0, updated_ms=0) != replace(new, created_ms=0, updated_ms=0):
                raise NotAllowedError(f"there is a replay {wanted.id} already")
            return current

        key = keys.replay(wanted.topic, wanted.id)
        return (await upsert(self._meta, key, REPLAY, made, runtime=self._runtime)).value

    async def report(self, topic: TopicName, replay: str, step: ReplayStep) -> Replay:
        def moved(current: Replay | None) -> Replay:
            if current is None:
                raise _none(topic, replay)
            return _after(current, step, self._runtime.clock.wall_ms())

        done = await upsert(self._meta, keys.replay(topic, replay), REPLAY, moved, runtime=self._runtime)
        return done.value

    async def forget(self, topic: TopicName, replay: str) -> None:
        await self.get(topic, replay)
        await self._meta.delete(keys.replay(topic, replay))

    async def _make_room(self) -> None:
        listed = await self.list()
        ended = [one for one in listed if one.state in _ENDED]
        over = len(listed) - _MAX_REPLAYS + 1
        if over > len(ended):
            raise TooManyError(f"{_MAX_REPLAYS} replays have not ended", hint="cancel some: weir replay cancel ID")
        for one in ended[: max(0, over)]:
            await self._meta.delete(keys.replay(one.topic, one.id))


def _after(current: Replay, step: ReplayStep, now_ms: int) -> Replay:
    """What it is by this report. What was fixed stays so, and counts only grow: two processes may go on with
    one replay, and the slower one's word changes nothing."""
    if current.state in _ENDED:
        if current.state is ReplayState.CANCELLED and step.state is None and step.delivered is not None:
            # Who delivers learns only now that it was ended, and what it did until then counts.
            return replace(current, delivered=_more(current, step.delivered), updated_ms=now_ms)
        if step.state is not current.state:
            raise NotAllowedError(f"replay {current.id} is {current.state.value}")
        return current
    found = replace(current, state=step.state or current.state, updated_ms=now_ms)
    if current.state is ReplayState.DELIVERING and step.state is ReplayState.SELECTING:
        raise NotAllowedError(f"replay {current.id} has its messages already")
    if step.selected is not None:
        if current.selected and current.selected != step.selected:
            raise NotAllowedError(f"replay {current.id} has its messages already")
        found = replace(found, selected=step.selected, delivered=current.delivered or (0,) * len(step.selected))
    if step.producer is not None:
        if current.producer_id >= 0 and step.producer != (current.producer_id, current.producer_epoch):
            raise NotAllowedError(f"replay {current.id} has a producer already")
        found = replace(found, producer_id=step.producer[0], producer_epoch=step.producer[1])
    if step.delivered is not None:
        found = replace(found, delivered=_more(found, step.delivered))
    return found


def _more(current: Replay, delivered: tuple[int, ...]) -> tuple[int, ...]:
    before = current.delivered or (0,) * len(delivered)
    if len(before) != len(delivered):
        raise NotAllowedError(f"replay {current.id} goes to {len(before)} partitions")
    return tuple(max(old, new) for old, new in zip(before, delivered, strict=True))


def _none(topic: TopicName, replay: str) -> ReplayNotFoundError:
    return ReplayNotFoundError(f"{topic} has no replay {replay}", hint="those that there are: weir replay list")
