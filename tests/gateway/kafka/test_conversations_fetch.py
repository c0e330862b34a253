"""Transcripts of fetching: limits, waiting, sessions, what is told when nothing can be read."""

from typing import Any

import pytest

from weir.broker.api import AbortedTransaction, Outgoing
from weir.broker.security import SecuritySettings
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.batch import BatchFormat
from weir.model.errors import TopicClosedError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.testing.fake_broker import FakeTopic
from weir.testing.kafka_stage import Peer, Stage, batch_of, play
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey
from weir.wire.kafka.records import parse_header, split_batches
from weir.wire.kafka.records_read import iter_records


def store(topic: FakeTopic, *values: bytes) -> int:
    """A batch that some producer sent earlier."""
    return topic.append(Outgoing(batch_of(*values), len(values), BatchFormat.KAFKA))


def values_of(part: Any) -> list[tuple[int, bytes]]:
    """Offset and value of every record in an answer."""
    return [
        (parse_header(batch).base_offset + record.offset_delta, bytes(record.value or b""))
        for batch in split_batches(part.records)
        for record in iter_records(batch)
    ]


@pytest.mark.parametrize("version", range(4, 13))
def test_batches_come_back_as_they_were_sent_but_at_their_offsets(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        store(topic, b"a", b"b")
        store(topic, b"c")
        peer = await stage.peer()
        peer.fetch(("orders", 0, 0), version=version)
        part = await peer.fetched()
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (Code.NONE, 3, 3)
        assert values_of(part) == [(0, b"a"), (1, b"b")]
        peer.fetch(("orders", 0, 2), version=version)
        part = await peer.fetched()
        assert values_of(part) == [(2, b"c")]
        assert bytes(part.records)[16:] == batch_of(b"c")[16:]

    play(conversation)


@pytest.mark.parametrize("version", range(13, 19))
def test_newer_clients_name_topics_by_their_ids(version: int) -> None:
    async def conversation(stage: Stage) -> None:
        store(await stage.topic(), b"a")
        peer = await stage.peer()
        described = await peer.metadata("orders", version=12)
        topic_id = described.topics[0].topic_id
        kind = m.FetchRequest
        part = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topics = [kind.FetchTopic(topic_id=each, partitions=[part]) for each in (topic_id, bytes(range(16)))]
        request = kind(max_wait_ms=0, min_bytes=1, max_bytes=1000, session_epoch=-1, topics=topics)
        known, unknown = (await peer.call(ApiKey.FETCH, version, request)).responses
        assert (known.topic_id, values_of(known.partitions[0])) == (topic_id, [(0, b"a")])
        assert unknown.partitions[0].error_code == Code.UNKNOWN_TOPIC_ID

    play(conversation)


def test_a_fetch_with_nothing_to_read_waits_and_is_answered_when_something_comes() -> None:
    async def conversation(stage: Stage) -> None:
        topics = [await stage.topic("orders", partitions=3), stage.at(index=1), stage.at(index=2)]
        peer = await stage.peer()
        began = stage.runtime.clock.monotonic()
        peer.fetch(*(("orders", index, 0) for index in range(3)), max_wait_ms=20_000)
        await stage.later(5)
        assert [topic.watchers for topic in topics] == [1, 1, 1]
        store(topics[1], b"news")
        answer = await peer.hear()
        assert 5 <= stage.runtime.clock.monotonic() - began < 6
        assert [values_of(part) for part in answer.responses[0].partitions] == [[], [(0, b"news")], []]
        assert [topic.watchers for topic in topics] == [1, 1, 1]  # for the next fetch, which will be alike
        peer.fetch(("orders", 2, 0), max_wait_ms=0)
        await peer.hear()
        assert [topic.watchers for topic in topics] == [0, 0, 1]
        peer.connection.close()
        await stage.later(1)
        assert [topic.watchers for topic in topics] == [0, 0, 0]

    play(conversation)


def test_idle_partitions_cost_nothing_though_their_client_names_them_each_time() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        store(stage.at(index=0), b"a")
        peer = await stage.peer()
        wanted = [("orders", 0, 1), ("orders", 1, 0), ("orders", 2, 0)]
        peer.fetch(*wanted, max_wait_ms=10)
        assert told(await peer.hear()) == {0: [], 1: [], 2: []}
        stage.broker.refusal = TopicClosedError("whoever asks is told so")
        peer.fetch(*wanted, max_wait_ms=10)
        answer = await peer.hear()  # and nobody asks
        assert [part.error_code for part in answer.responses[0].partitions] == [Code.NONE] * 3
        assert [part.high_watermark for part in answer.responses[0].partitions] == [1, 0, 0]
        peer.fetch(("orders", 0, 0), *wanted[1:], max_wait_ms=10)  # somewhere else
        answer = await peer.hear()
        codes = [Code.NOT_LEADER_OR_FOLLOWER, Code.NONE, Code.NONE]
        assert [part.error_code for part in answer.responses[0].partitions] == codes
        stage.broker.refusal = None
        store(stage.at(index=2), b"c")
        peer.fetch(*wanted, max_wait_ms=10)
        assert told(await peer.hear()) == {0: [], 1: [], 2: [(0, b"c")]}

    play(conversation)


def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for_but_not_for_ever() -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        peer.fetch(("orders", 0, 0), max_wait_ms=20_000, min_bytes=1_000)
        await stage.later(1)
        store(topic, bytes(100))
        await stage.later(1)
        assert not peer.frames
        store(topic, bytes(1_000))
        assert len(values_of(await peer.fetched())) == 2
        peer.fetch(("orders", 0, 0), max_wait_ms=20_000, min_bytes=100_000)
        began = stage.runtime.clock.monotonic()
        assert len(values_of(await peer.fetched())) >= 1
        assert stage.runtime.clock.monotonic() - began >= 20

    play(conversation)


def test_limits_of_a_fetch_are_kept_but_never_stop_a_client() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        for index in range(3):
            store(stage.at(index=index), bytes(1_000))
        peer = await stage.peer()
        wanted = [("orders", index, 0) for index in range(3)]
        peer.fetch(*wanted, max_bytes=100)  # smaller than any batch: one comes all the same
        answer = await peer.hear()
        assert [len(values_of(part)) for part in answer.responses[0].partitions] == [1, 0, 0]
        peer.fetch(*wanted, max_bytes=2_500)
        answer = await peer.hear()
        assert [len(values_of(part)) for part in answer.responses[0].partitions] == [1, 1, 0]
        peer.fetch(*wanted, partition_max_bytes=100)
        answer = await peer.hear()
        assert [len(values_of(part)) for part in answer.responses[0].partitions] == [1, 0, 0]

    play(conversation)


@pytest.mark.parametrize(("offset", "code"), [(-1, Code.OFFSET_OUT_OF_RANGE), (3, Code.OFFSET_OUT_OF_RANGE)])
def test_an_offset_outside_of_the_log_is_told_at_once(offset: int, code: Code) -> None:
    async def conversation(stage: Stage) -> None:
        store(await stage.topic(), b"a", b"b")
        peer = await stage.peer()
        peer.fetch(("orders", 0, offset), max_wait_ms=60_000)
        part = await peer.fetched()
        assert (part.error_code, part.high_watermark, part.log_start_offset) == (code, 2, 0)

    play(conversation)


def test_a_fetch_of_what_does_not_exist_is_told_at_once() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=2)
        peer = await stage.peer()
        peer.fetch(("nowhere", 0, 0), ("orders", 2, 0), ("orders", 0, 0), max_wait_ms=60_000)
        nowhere, orders = (await peer.hear()).responses
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
        assert [part.error_code for part in nowhere.partitions] == [unknown]
        assert [part.error_code for part in orders.partitions] == [unknown, Code.NONE]

    play(conversation)


def test_a_topic_that_another_broker_has_is_answered_with_what_clients_try_again() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer = await stage.peer()
        stage.broker.refusal = TopicClosedError("it moved")
        peer.fetch(("orders", 0, 0))
        assert (await peer.fetched()).error_code == Code.NOT_LEADER_OR_FOLLOWER

    play(conversation)


def test_only_who_may_consume_can_fetch_and_a_grant_taken_back_holds_at_once() -> None:
    name = TopicName.parse("orders")

    async def conversation(stage: Stage) -> None:
        store(await stage.topic(), b"a")
        peer = await stage.peer()
        await stage.registry.grants.grant(name, "anonymous", (Action.PRODUCE,))
        peer.fetch(("orders", 0, 0))
        assert (await peer.fetched()).error_code == Code.TOPIC_AUTHORIZATION_FAILED
        await stage.registry.grants.grant(name, "anonymous", (Action.CONSUME,))
        answer = await begin(peer, ("orders", 0, 0))
        assert answer.session_id
        await stage.registry.grants.revoke(name, "anonymous")
        answer = await go_on(peer, answer.session_id, 1)
        assert answer.responses[0].partitions[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED

    play(conversation, security=SecuritySettings(authorisation=True))


def test_a_reader_of_decided_messages_is_told_of_aborted_ones_and_stops_at_the_open() -> None:
    class Undecided(FakeTopic):
        stable_offset = 2

        def aborted(self, first: int, end: int) -> list[AbortedTransaction]:
            return [AbortedTransaction(9, 0, 1)] if first < 2 else []

    async def conversation(stage: Stage) -> None:
        name = (await stage.topic()).name
        topic = stage.broker.served[name] = Undecided(name)
        store(topic, b"a", b"b")
        store(topic, b"open")
        peer = await stage.peer()
        peer.fetch(("orders", 0, 0), isolation_level=1)
        part = await peer.fetched()
        assert (part.high_watermark, part.last_stable_offset) == (3, 2)
        assert [(each.producer_id, each.first_offset) for each in part.aborted_transactions] == [(9, 0)]
        peer.fetch(("orders", 0, 2), isolation_level=1, max_wait_ms=100)
        part = await peer.fetched()
        assert (bytes(part.records), part.aborted_transactions) == (b"", [])
        peer.fetch(("orders", 0, 2), isolation_level=0)
        part = await peer.fetched()
        assert (values_of(part), part.aborted_transactions) == ([(2, b"open")], None)

    play(conversation)


def test_what_clients_do_not_read_is_bounded_over_all_of_them_and_nobody_is_starved() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=2)
        for index in range(2):
            store(stage.at(index=index), bytes(1_000))
        wanted = [("orders", index, 0) for index in range(2)]
        peer = await stage.peer()
        for most in (1_500, 1_500):  # what was read is free again
            peer.fetch(*wanted, max_bytes=most)
            assert [len(part) for part in told(await peer.hear()).values()] == [1, 0]
        other = await stage.peer()
        other.fetch(*wanted, max_wait_ms=60_000, min_bytes=100_000)  # holds what it has while it waits for more
        await stage.later(1)
        peer.fetch(*wanted)
        assert [len(part) for part in told(await peer.hear()).values()] == [1, 0]
        began = stage.runtime.clock.monotonic()
        peer.fetch(("orders", 0, 1), max_wait_ms=5_000)  # with no room left, an empty fetch waits all the same
        assert told(await peer.hear()) == {0: []}
        assert stage.runtime.clock.monotonic() - began >= 5

    play(conversation, settings=KafkaSettings(max_in_hand_bytes=1_000))


# --- sessions -------------------------------------------------------------------------------------------


async def begin(peer: Peer, *wanted: tuple[str, int, int]) -> Any:
    peer.fetch(*wanted, session_epoch=0, max_wait_ms=100)
    return await peer.hear()


async def go_on(peer: Peer, number: int, epoch: int, *changed: tuple[str, int, int], **more: Any) -> Any:
    peer.fetch(*changed, session_id=number, session_epoch=epoch, **{"max_wait_ms": 100, **more})
    return await peer.hear()


def told(answer: Any) -> dict[int, list[tuple[int, bytes]]]:
    return {part.partition_index: values_of(part) for topic in answer.responses for part in topic.partitions}


def test_a_session_names_its_partitions_once_and_is_told_of_changes_only() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        store(stage.at(index=0), b"a")
        peer = await stage.peer()
        answer = await begin(peer, *(("orders", index, 0) for index in range(3)))
        number = answer.session_id
        assert told(answer) == {0: [(0, b"a")], 1: [], 2: []}
        assert told(await go_on(peer, number, 1, ("orders", 0, 1))) == {}
        store(stage.at(index=2), b"c")
        assert told(await go_on(peer, number, 2)) == {2: [(0, b"c")]}
        # Until the client says that it has read it, it comes again.
        assert told(await go_on(peer, number, 3)) == {2: [(0, b"c")]}
        assert told(await go_on(peer, number, 4, ("orders", 2, 1))) == {}

    play(conversation)


def test_a_waiting_session_is_woken_by_any_of_its_partitions() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        peer = await stage.peer()
        number = (await begin(peer, *(("orders", index, 0) for index in range(3)))).session_id
        peer.fetch(session_id=number, session_epoch=1, max_wait_ms=60_000)
        await stage.later(3)
        store(stage.at(index=1), b"b")
        assert told(await peer.hear()) == {1: [(0, b"b")]}
        assert [stage.at(index=index).watchers for index in range(3)] == [1, 1, 1]

    play(conversation)


def test_partitions_that_a_session_forgets_are_neither_read_nor_watched() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=2)
        peer = await stage.peer()
        number = (await begin(peer, ("orders", 0, 0), ("orders", 1, 0))).session_id
        gone = [m.FetchRequest.ForgottenTopic(topic="orders", partitions=[1])]
        assert told(await go_on(peer, number, 1, forgotten_topics_data=gone)) == {}
        store(stage.at(index=0), b"a")
        store(stage.at(index=1), b"b")
        assert told(await go_on(peer, number, 2)) == {0: [(0, b"a")]}
        assert (stage.at(index=0).watchers, stage.at(index=1).watchers) == (1, 0)

    play(conversation)


def test_sessions_that_do_not_exist_or_are_out_of_step_are_refused() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peer, other = await stage.peer(), await stage.peer()
        number = (await begin(peer, ("orders", 0, 0))).session_id
        assert (await go_on(peer, number + 1, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        assert (await go_on(other, number, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND
        assert (await go_on(peer, number, 2)).error_code == Code.INVALID_FETCH_SESSION_EPOCH
        assert (await go_on(peer, number, 1, version=13)).error_code == Code.FETCH_SESSION_TOPIC_ID_ERROR
        assert (await go_on(peer, number, 1)).error_code == Code.NONE

    play(conversation)


@pytest.mark.parametrize("ending", ["a new session", "a fetch without one", "the connection"])
def test_a_session_ends_when_its_client_begins_anew_or_goes(ending: str) -> None:
    async def conversation(stage: Stage) -> None:
        topic = await stage.topic()
        peer = await stage.peer()
        number = (await begin(peer, ("orders", 0, 0))).session_id
        assert topic.watchers == 1
        if ending == "the connection":
            peer.connection.close()
            await stage.later(1)
            assert topic.watchers == 0
            return
        epoch = 0 if ending == "a new session" else -1
        peer.fetch(("orders", 0, 0), session_id=number, session_epoch=epoch, max_wait_ms=100)
        assert (await peer.hear()).session_id != number
        assert topic.watchers == 1
        assert (await go_on(peer, number, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND

    play(conversation)


def test_sessions_are_bounded_and_an_idle_one_gives_way() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic()
        peers = [await stage.peer() for _ in range(3)]
        first, second, third = [(await begin(peer, ("orders", 0, 0))).session_id for peer in peers]
        assert [bool(number) for number in (first, second, third)] == [True, True, False]
        await stage.later(100)
        assert (await go_on(peers[0], first, 1)).error_code == Code.NONE
        await stage.later(100)
        assert (await begin(peers[2], ("orders", 0, 0))).session_id
        assert (await go_on(peers[0], first, 2)).error_code == Code.NONE
        assert (await go_on(peers[1], second, 1)).error_code == Code.FETCH_SESSION_ID_NOT_FOUND

    play(conversation, settings=KafkaSettings(max_fetch_sessions=2))
