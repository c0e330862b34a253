"""Bytes in hand: what one connection, and all together, may have."""

from weir.broker.window import Total, Window


def test_over_its_limit_a_connection_is_full_until_half_is_free() -> None:
    window = Window(100, Total(10_000))
    window.take(60)
    assert not window.full
    window.take(60)
    assert window.full
    window.free(60)
    assert window.full
    window.free(20)
    assert not window.full


def test_who_waits_is_told_in_turn_as_long_as_there_is_room() -> None:
    window = Window(100, Total(10_000))
    told: list[str] = []

    def greedy() -> None:
        told.append("greedy")
        window.take(200)

    window.wait("greedy", greedy)
    window.wait("late", lambda: told.append("late"))
    window.take(100)
    window.free(100)
    assert told == ["greedy"]
    window.forget("greedy")
    window.free(200)
    assert told == ["greedy", "late"]


def test_over_the_limit_of_all_everybody_may_still_have_one_delivery() -> None:
    total = Total(100)
    rich, poor = Window(1000, total), Window(1000, total)
    told: list[str] = []
    rich.take(150)
    assert rich.full
    assert not poor.full
    poor.take(50)
    assert poor.full
    poor.wait("poor", lambda: told.append("poor"))
    rich.free(100)
    assert told == []
    rich.free(50)
    assert told == ["poor"]
    assert total.taken == 50


def test_what_a_connection_had_is_free_when_it_is_gone() -> None:
    total = Total(100)
    gone = Window(1000, total)
    gone.take(500)
    gone.close()
    assert total.taken == 0
    assert not total.over
