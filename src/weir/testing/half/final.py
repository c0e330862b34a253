"""Who reads everything back, once all is healed: decisions, the topics, what consumers still get."""

import asyncio

from weir.broker.api.broker import Broker
from weir.broker.api.consumers import SubscriptionType
from weir.broker.api.topics import Topic
from weir.model.errors import InvariantError, WeirError
from weir.model.messages import Decision, Message
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.testing.half.history import HalfOpKind
from weir.testing.half.workers import GROUPS, HALF, RECALL, ROLE, Known, stored_of, subscribe, whole
from weir.testing.operations import FINAL
from weir.wire.formats.table import messages_of

_PAUSE_S = 0.2
_QUIET_S = 2.0


async def read_back(broker: Broker, known: Known, clock: Clock) -> None:
    """All topics that this broker has or can have, until none is left; others do the same."""
    while known.unread:
        for name in list(known.unread):
            try:
                topic = await whole(broker, name)
                if topic is not None:
                    await _read(topic, name, known, clock)
            except InvariantError:
                raise
            except WeirError:
                continue
            known.unread.pop(name, None)
        await clock.sleep(_PAUSE_S)


async def _read(topic: Topic, name: TopicName, known: Known, clock: Clock) -> None:
    if name == HALF:
        await _decide_all(topic, known)
    if name == GROUPS:
        await _empty(topic, known)
    area = stored_of(topic).held
    while name == RECALL and area is not None and (await area.count()).messages:
        await clock.sleep(_PAUSE_S)  # it is due, and on its way
    offset = topic.start_offset
    content: list[Message] = []
    while batches := await topic.read(offset, 1 << 20):
        content += [message for batch in batches for message in messages_of(batch)]
        offset = batches[-1].end_offset
    for message in content:
        number, group = int(bytes(message.value or b"0")), (message.key or b"").decode()
        known.story.note(FINAL, HalfOpKind.CONTENT, topic=name.local, number=number, group=group)


async def _decide_all(topic: Topic, known: Known) -> None:
    """Commit everything that can be committed."""
    half = stored_of(topic).half
    for number, half_id in known.ids.items():
        pending = known.story.begin(FINAL, HalfOpKind.COMMIT, topic="half", number=number)
        try:
            decided = await half.decide(half_id, Decision.COMMIT, role=ROLE)
        except WeirError as failure:
            pending.failed(failure)
            if isinstance(failure, InvariantError):
                raise
        else:
            pending.ok(again=decided.again)


async def _empty(topic: Topic, known: Known) -> None:
    consumer = await subscribe(topic, SubscriptionType.SHARED)
    try:
        while True:
            try:
                async with asyncio.timeout(_QUIET_S):
                    deliveries = await consumer.next(50)
            except TimeoutError:
                return
            for delivery in deliveries:
                for index, message in enumerate(messages_of(delivery.batch)):
                    if delivery.wanted is None or delivery.wanted >> index & 1:
                        facts = {
                            "number": int(bytes(message.value or b"0")),
                            "group": (message.key or b"").decode(),
                        }
                        for kind in (HalfOpKind.SEEN, HalfOpKind.ACK):
                            known.story.note(f"{FINAL}/1", kind, topic="groups", **facts)
                        offset = delivery.batch.base_offset + index
                        consumer.ack([(offset, offset + 1)])
    finally:
        await consumer.close()
