"""Confirms are told together where their order allows it, and each publish is told about exactly once."""

import asyncio
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from weir.gateway.amqp.confirms import Confirms
from weir.wire.amqp.command_reader import CommandReader
from weir.wire.amqp.frames import Role
from weir.wire.amqp.methods import basic


def told(frames: list[bytes]) -> list[basic.Ack | basic.Nack]:
    reader = CommandReader(Role.CLIENT)
    return [command.method for frame in frames for command in reader.feed(frame)]  # type: ignore[misc]


def play(story: Callable[[Confirms], None]) -> list[basic.Ack | basic.Nack]:
    """What is said by the end of the next turn of the loop."""

    async def turn() -> list[bytes]:
        frames: list[bytes] = []
        loop = asyncio.get_running_loop()
        story(Confirms(1, frames.append, loop.call_soon))
        await asyncio.sleep(0)
        return frames

    return told(asyncio.run(turn()))


def test_neighbours_from_the_first_on_are_one_frame() -> None:
    def story(confirms: Confirms) -> None:
        assert confirms.take_all(3) == 1
        assert confirms.take(1) == 4
        confirms.resolved(4, 5, True)  # out of order, but within one turn
        confirms.resolved(1, 4, True)

    assert play(story) == [basic.Ack(4, True)]


def test_what_has_an_unknown_one_before_it_is_told_alone() -> None:
    def story(confirms: Confirms) -> None:
        confirms.take_all(4)
        confirms.resolved(2, 4, True)
        confirms.tell()
        assert confirms.outstanding == 2
        confirms.resolved(1, 2, True)
        confirms.tell()
        confirms.resolved(4, 5, True)
        confirms.tell()
        assert confirms.outstanding == 0

    alone = [basic.Ack(2), basic.Ack(3), basic.Ack(1), basic.Ack(4)]
    assert play(story) == alone


def test_a_publish_to_several_queues_waits_for_all_and_one_refusal_is_enough() -> None:
    def story(confirms: Confirms) -> None:
        assert [confirms.take(2), confirms.take(2), confirms.take(0), confirms.take(1)] == [1, 2, 3, 4]
        confirms.resolved(1, 3, True)
        confirms.tell()  # only 3, which no queue wanted
        confirms.resolved(2, 3, False)
        confirms.resolved(1, 2, True)
        confirms.resolved(4, 5, True)

    assert play(story) == [basic.Ack(3), basic.Ack(1), basic.Nack(2, False, False), basic.Ack(4)]


@given(st.data())
def test_every_publish_is_told_about_once_and_truly(data: st.DataObject) -> None:
    queues = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    answers = [number for number, count in enumerate(queues, 1) for _ in range(count)]
    order = data.draw(st.permutations(answers))
    refused = data.draw(st.sets(st.sampled_from(answers))) if answers else set()
    turns = data.draw(st.sets(st.integers(0, len(order))))

    def story(confirms: Confirms) -> None:
        for count in queues:
            confirms.take(count)
        for at, number in enumerate(order):
            confirms.resolved(number, number + 1, number not in refused)
            if at in turns:
                confirms.tell()

    known: dict[int, bool] = {}
    for said in play(story):
        first = said.delivery_tag
        if said.multiple:
            first = next(n for n in range(1, said.delivery_tag + 1) if n not in known)
        for number in range(first, said.delivery_tag + 1):
            assert number not in known or said.multiple
            known.setdefault(number, isinstance(said, basic.Ack))
    assert known == {number: number not in refused for number in range(1, len(queues) + 1)}
