"""Conversations of producers, frame by frame, over a fake broker in simulated time."""

from collections.abc import Callable
from typing import Any

from weir.model.errors import (
    ProducerClosedError,
    QuotaExceededError,
    StreamTerminatedError,
)
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.frames import encode_command, encode_with_message
from weir.wire.pulsar.message import seal_message

TOPIC = "persistent://public/default/t"
Play = Callable[..., None]


def test_receipts_say_where_each_send_went(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        for sequence, count in enumerate((1, 5, 1)):
            more = {"num_messages_in_batch": count} if count > 1 else {}
            peer.send(1, sequence, **more)
        receipts = [await peer.hear(api.CommandSendReceipt) for _ in range(3)]
        assert [(r.sequence_id, r.message_id.entryId) for r in receipts] == [(0, 0), (1, 1), (2, 6)]
        assert [batch.count for batch in stage.broker.at(TOPIC).batches] == [1, 5, 1]

    play(conversation)


def test_what_the_broker_is_told_of_a_send(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 2**64 - 1, deliver_at_time=77)
        head = api.MessageMetadata(producer_name="p", sequence_id=5, publish_time=1, num_messages_in_batch=3)
        command = api.CommandSend(producer_id=1, sequence_id=5, highest_sequence_id=7, is_chunk=True)
        message = b"".join(seal_message(head, b"abc"))
        peer.connection.write(encode_with_message(command, [message]))
        await stage.later(1)
        first, second = (outgoing for outgoing, _ in topic.producers[0].waiting)
        assert (first.sequence, first.highest_sequence, first.deliver_at_ms, first.partial) == (-1, -1, 77, False)
        assert (second.sequence, second.highest_sequence, second.count, second.partial) == (5, 7, 3, True)
        assert (second.payload, second.deliver_at_ms) == (message, None)

    play(conversation)


def test_a_wrong_checksum_is_refused_after_what_came_before(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        head = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        message = bytearray(b"".join(seal_message(head, b"x")))
        message[-1] ^= 1
        peer.connection.write(encode_with_message(api.CommandSend(producer_id=1, sequence_id=1), [bytes(message)]))
        peer.send(1, 2)
        await stage.later(1)
        topic.producers[0].store()
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 0
        refused = await peer.hear(api.CommandSendError)
        assert (refused.sequence_id, refused.error) == (1, api.ServerError.ChecksumError)
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 2

    play(conversation)


def test_plain_sends_keep_their_place_among_all_others(play: Play) -> None:
    def sent(sequence: int, **metadata: Any) -> bytes:
        head = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, **metadata)
        command = api.CommandSend(producer_id=1, sequence_id=sequence)
        return b"".join(encode_with_message(command, seal_message(head, b"%d" % sequence)))

    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC, producer_name="p")
        sends = [sent(sequence) for sequence in range(200)]
        sends[70] = sent(70, num_messages_in_batch=3)
        sends[90] = sends[90][:-1] + b"!"  # its checksum is wrong
        sends[120] = sent(120, partition_key="k") + encode_command(api.CommandPing())
        said = b"".join(sends)
        for at in range(0, len(said), 1000):  # most pieces end within a send
            peer.connection.write([said[at : at + 1000]])
            await stage.later(0.01)
        heard: list[Any] = []
        while len(heard) < 201:
            heard.append((await peer.frame()).command)
        told = [c.sequence_id for c in heard if isinstance(c, api.CommandSendReceipt | api.CommandSendError)]
        assert told == list(range(200))
        assert [c.sequence_id for c in heard if isinstance(c, api.CommandSendError)] == [90]
        assert any(isinstance(c, api.CommandPong) for c in heard)
        stored = [bytes(batch.payload)[-3:] for batch in stage.broker.at(TOPIC).batches]
        assert [payload.endswith(b"%d" % n) for payload, n in zip(stored, told[:90] + told[91:], strict=True)] == (
            [True] * 199
        )

    play(conversation)


def test_a_producer_that_the_broker_closed_takes_no_plain_sends(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC, producer_name="p")
        topic = stage.broker.at(TOPIC)
        for sequence in range(40):
            peer.send(1, sequence)
            await peer.hear(api.CommandSendReceipt)
        topic.producers[0].shut("moved")
        await peer.hear(api.CommandCloseProducer)
        peer.send(1, 40)
        peer.say(api.CommandPing())
        await peer.hear(api.CommandPong)
        assert len(topic.batches) == 40

    play(conversation)


def test_a_send_that_is_refused_for_good_is_told(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        peer.send(1, 1)
        await stage.later(1)
        topic.producers[0].store(QuotaExceededError("full"))
        refused = await peer.hear(api.CommandSendError)
        assert (refused.sequence_id, refused.error) == (
            0,
            api.ServerError.ProducerBlockedQuotaExceededException,
        )
        topic.held_back = False
        await stage.later(1)
        peer.send(1, 2)
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 2

    play(conversation)


def test_a_send_that_may_work_elsewhere_closes_the_producer(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        peer.send(1, 1)
        await stage.later(1)
        topic.producers[0].store(ProducerClosedError("gone"))
        closed = await peer.hear(api.CommandCloseProducer)
        assert closed.producer_id == 1
        peer.send(1, 2)  # sent before the client knew; it will send it again
        topic.held_back = False
        await peer.produce(TOPIC, 1)
        peer.send(1, 0)
        assert (await peer.hear(api.CommandSendReceipt)).sequence_id == 0
        assert len(topic.batches) == 1

    play(conversation)


def test_a_terminated_topic_closes_the_producer_without_a_refusal_of_its_sends(play: Play) -> None:
    """A client for Go that gets a SEND_ERROR for it forgets the producer, and its sends never end."""

    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        peer.send(1, 1)
        await stage.later(1)
        topic.terminated = True
        topic.producers[0].store(StreamTerminatedError("the end"))
        frame = await peer.frame()
        assert isinstance(frame.command, api.CommandCloseProducer)
        peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=9))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.TopicTerminatedError
        assert topic.batches == []

    play(conversation)


def test_the_broker_closes_a_producer(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        stage.broker.at(TOPIC).producers[0].shut("moved")
        assert (await peer.hear(api.CommandCloseProducer)).producer_id == 1

    play(conversation)


def test_a_closed_producer_has_its_receipts_first(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        topic = stage.broker.at(TOPIC)
        topic.held_back = True
        peer.send(1, 0)
        peer.say(api.CommandCloseProducer(producer_id=1, request_id=9))
        await stage.later(1)
        topic.producers[0].store()
        await peer.hear(api.CommandSendReceipt)
        assert (await peer.hear(api.CommandSuccess)).request_id == 9
        assert topic.producers == []
        peer.say(api.CommandCloseProducer(producer_id=1, request_id=10))
        assert (await peer.hear(api.CommandSuccess)).request_id == 10

    play(conversation)


def test_a_waiting_producer_is_told_twice(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        topic = stage.broker.at(TOPIC)
        topic.busy = True
        peer.say(
            api.CommandProducer(
                topic=TOPIC, producer_id=1, request_id=3, producer_access_mode=api.WaitForExclusive
            )
        )
        waiting = await peer.hear(api.CommandProducerSuccess)
        assert (waiting.request_id, waiting.producer_ready) == (3, False)
        peer.send(1, 0)
        assert (await peer.hear(api.CommandSendError)).error == api.ServerError.NotAllowedError
        topic.producers[0].may_send.set()
        ready = await peer.hear(api.CommandProducerSuccess)
        assert (ready.request_id, ready.producer_ready) == (3, True)
        peer.send(1, 0)
        await peer.hear(api.CommandSendReceipt)

    play(conversation)


def test_a_producer_that_is_given_up_while_it_is_made(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        stage.broker.answering.clear()
        peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=3))
        peer.say(api.CommandProducer(topic=TOPIC, producer_id=1, request_id=4))
        assert (await peer.hear(api.CommandError)).error == api.ServerError.ServiceNotReady
        peer.say(api.CommandCloseProducer(producer_id=1, request_id=5))
        assert (await peer.hear(api.CommandSuccess)).request_id == 5
        stage.broker.answering.set()
        assert (await peer.hear(api.CommandError)).request_id == 3
        assert stage.broker.at(TOPIC).producers == []

    play(conversation)


def test_who_hangs_up_leaves_nothing_behind(play: Play) -> None:
    async def conversation(stage: Any) -> None:
        peer = await stage.peer()
        await peer.produce(TOPIC)
        await peer.subscribe(TOPIC)
        topic = stage.broker.at(TOPIC)
        assert (len(topic.producers), len(topic.consumers)) == (1, 1)
        peer.connection.abort()
        await stage.later(1)
        assert (topic.producers, topic.consumers, stage.server.connections) == ([], [], 0)

    play(conversation)
