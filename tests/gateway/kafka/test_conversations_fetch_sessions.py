"""Transcripts of incremental fetch sessions: named once, told of changes, bounded, gone with their connection."""

import pytest

from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.settings import KafkaSettings
from weir.testing.kafka.stage import Stage, begin, go_on, play, store, told
from weir.wire.kafka import messages as m


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


def test_partitions_of_all_sessions_are_bounded_and_free_again_when_a_session_ends() -> None:
    async def conversation(stage: Stage) -> None:
        await stage.topic(partitions=3)
        first, second = await stage.peer(), await stage.peer()
        number = (await begin(first, ("orders", 0, 0), ("orders", 1, 0))).session_id
        assert number
        assert not (await begin(second, ("orders", 0, 0), ("orders", 1, 0))).session_id
        second.fetch(("orders", 0, 0), ("orders", 1, 0), max_wait_ms=10)  # goes without
        assert told(await second.hear()) == {0: [], 1: []}
        gone = [m.FetchRequest.ForgottenTopic(topic="orders", partitions=[1])]
        for epoch in (1, 2):
            await go_on(first, number, epoch, forgotten_topics_data=gone)
        assert (await begin(second, ("orders", 0, 0), ("orders", 1, 0))).session_id
        first.connection.close()
        second.connection.close()
        await stage.later(1)
        assert [stage.at(index=index).watchers for index in range(3)] == [0, 0, 0]
        third = await stage.peer()
        assert (await begin(third, *(("orders", index, 0) for index in range(3)))).session_id

    play(conversation, settings=KafkaSettings(max_fetch_session_partitions=3))
