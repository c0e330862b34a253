"""The only copy of a transaction's marker is damaged: the topic asks how it ended, and is not stuck."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from weir.broker.api.transactions import ProducerIdentity
from weir.broker.topics.topic import BrokerTopic
from weir.model.ledger import Quorum
from weir.testing.broker.transaction_stage import T0, T1, Coordinator


async def one_copy(bench: Any) -> Coordinator:
    bench.settings = replace(bench.settings, quorum=Quorum(1, 1, 1))
    return await Coordinator.make(bench)


def damage(bench: Any, topic: BrokerTopic, offset: int) -> None:
    ledger, entry = topic.position_of(offset)
    for bookie in bench.bookies.bookies.values():
        if ledger in bookie.ledgers and entry in bookie.ledgers[ledger].entries:
            bookie.damage(ledger, entry)


async def lose_marker(
    coordinator: Coordinator, who: ProducerIdentity, *, commit: bool, last: bool = False
) -> None:
    """One transaction in T0, then something else (unless its marker is to be the log's last entry); the marker,
    at offset 1, is damaged afterwards."""
    await coordinator.begin(who, T0)
    await coordinator.transactions.end("x", who, commit=commit)
    topic = await coordinator.topic(T0)
    assert topic.end_offset == 2
    if not last:
        await coordinator.bench.publish(await coordinator.bench.producer(topic), "plain")
    await coordinator.bench.runtime.clock.sleep(5)  # until the coordinator knows durably that all is done
    damage(coordinator.bench, topic, 1)


async def decided(coordinator: Coordinator) -> BrokerTopic:
    """T0, once nothing in it is open."""
    topic = await coordinator.topic(T0)
    while topic.stable_offset < topic.end_offset:
        await coordinator.bench.runtime.clock.sleep(0.5)
    return topic


async def seen(coordinator: Coordinator, topic: BrokerTopic) -> list[str]:
    """What a consumer gets that wants decided messages only, up to one that is written now."""
    bench = coordinator.bench
    await bench.publish(await bench.producer(topic), "end")
    consumer = await bench.consumer(topic, "look")
    found: list[str] = []
    while "end" not in found:
        found += bench.texts(await consumer.next(1000))
    await consumer.unsubscribe()
    return [text for text in found if text != "end"]


@pytest.mark.slow
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_transaction_whose_marker_is_lost_ends_after_a_crash_as_it_was_decided(
    run: Callable[..., None], commit: bool, last: bool
) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await one_copy(bench)
        await lose_marker(coordinator, await coordinator.transactions.init("x"), commit=commit, last=last)
        for _ in range(2):  # what was stored again stays
            coordinator = await one_copy(bench)
            topic = await decided(coordinator)
            assert await seen(coordinator, topic) == ["m"] * commit + ["plain"] * (not last)
            assert len(topic.aborted(0, topic.end_offset)) == (not commit)

    run(scenario)


@pytest.mark.parametrize("again", ["init", "begin"])
def test_the_decision_is_known_when_the_producer_has_gone_on_elsewhere(
    run: Callable[..., None], again: str
) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await one_copy(bench)
        who = await coordinator.transactions.init("x")
        await lose_marker(coordinator, who, commit=True)
        coordinator = await one_copy(bench)
        if again == "init":
            who = await coordinator.transactions.init("x")
        await bench.runtime.clock.sleep(1)
        await coordinator.begin(who, T1)
        topic = await decided(coordinator)
        assert await seen(coordinator, topic) == ["m", "plain"]
        assert await coordinator.seen(T1) == []  # the open one is not touched

    run(scenario)


def test_a_transaction_of_which_nobody_knows_how_it_ended_is_aborted_and_said(
    run: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await one_copy(bench)
        who = await coordinator.transactions.init("x")
        await lose_marker(coordinator, who, commit=True)
        await bench.runtime.clock.sleep(1)
        await coordinator.begin(who, T1)
        await coordinator.transactions.end("x", who, commit=True)  # by now the coordinator knows of this one only
        coordinator = await one_copy(bench)
        with caplog.at_level(logging.WARNING):
            topic = await decided(coordinator)
        assert await seen(coordinator, topic) == ["plain"]
        said = [
            record.getMessage() for record in caplog.records if "its decision is unknown" in record.getMessage()
        ]
        assert len(said) == 1
        assert str(T0) in said[0]
        assert f"producer {who.producer_id} " in said[0]

    run(scenario)


def test_an_open_transaction_that_lost_a_message_is_left_to_its_producer(run: Callable[..., None]) -> None:
    async def scenario(bench: Any) -> None:
        coordinator = await one_copy(bench)
        who = await coordinator.transactions.init("x")
        await coordinator.begin(who, T0)
        await coordinator.write(who, T0, "lost", "whole")
        damage(bench, await coordinator.topic(T0), 1)
        sequences = coordinator.sequences
        coordinator = await one_copy(bench)
        coordinator.sequences = sequences
        topic = await coordinator.topic(T0)
        await bench.runtime.clock.sleep(5)
        assert topic.stable_offset == 0
        await coordinator.write(who, T0, "more")
        await coordinator.transactions.end("x", who, commit=True)
        assert await seen(coordinator, topic) == ["m", "whole", "more"]

    run(scenario)
