"""Transcripts of fetching: limits, waiting, sessions, what is told when nothing can be read."""

import pytest

from weir.broker.api.topics import AbortedTransaction
from weir.broker.security.authentication import SecuritySettings
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.settings import KafkaSettings
from weir.model.batch import Batch
from weir.model.errors import TopicClosedError
from weir.model.registry import Action
from weir.model.topics import TopicName
from weir.testing.broker.fake import FakeTopic
from weir.testing.kafka.stage import Stage, batch_of, begin, go_on, play, store, told, values_of
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey


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
        assert values_of(part) == [(0, b"a"), (1, b"b"), (2, b"c")]
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


def test_a_fetch_reads_on_until_its_limits_however_little_one_read_brings() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=2)
        for index in range(2):
            for _ in range(5):
                store(stage.at(index=index), bytes(1_000))  # the log gives one batch for each read
        peer = await stage.peer()
        wanted = [("orders", index, 0) for index in range(2)]
        for limits, counts in (
            ({}, [5, 5]),
            ({"partition_max_bytes": 3_500}, [3, 3]),
            ({"max_bytes": 7_500}, [5, 2]),
        ):
            peer.fetch(*wanted, **limits)
            assert [len(part) for part in told(await peer.hear()).values()] == counts

    play(conversation)


def test_an_answer_that_is_full_waits_for_nothing_and_reads_nothing_more() -> None:
    class Counted(FakeTopic):
        reads = 0

        async def read(self, offset: int, max_bytes: int) -> list[Batch]:
            type(self).reads += 1
            return await super().read(offset, max_bytes)

    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=9)
        for index in range(9):
            name = stage.at(index=index).name
            topic = stage.broker.served[name] = Counted(name)
            store(topic, bytes(1_000))
        peer = await stage.peer()
        began = stage.runtime.clock.monotonic()
        wanted = [("orders", index, 0) for index in range(9)]
        peer.fetch(*wanted, max_bytes=2_500, min_bytes=2_400, max_wait_ms=60_000)
        assert [len(part) for part in told(await peer.hear()).values()] == [1, 1, 0, 0, 0, 0, 0, 0, 0]
        assert Counted.reads == 3
        assert stage.runtime.clock.monotonic() - began < 60

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
        assert (part.error_code, part.high_watermark, part.log_start_offset) == (code, -1, -1)

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

    play(conversation, settings=KafkaSettings(max_unread_bytes=1_000))
