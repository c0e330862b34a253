"""The table of a session's states."""

from weir.gateway.kafka.session import NEXT, READING, Event, State


def test_every_state_has_a_move_for_every_event() -> None:
    assert all(set(NEXT[state]) == set(Event) for state in State)


def test_a_session_that_takes_nothing_more_never_reads_again_and_the_end_is_final() -> None:
    for event in Event:
        assert NEXT[State.FINISHING][event] not in READING
        assert NEXT[State.CLOSED][event] is State.CLOSED


def test_only_who_is_known_is_served_and_everyone_can_be_ended() -> None:
    into_serving = {(state, event) for state in State for event in Event if NEXT[state][event] is State.SERVING}
    assert into_serving == {(State.NAMELESS, Event.KNOWN), (State.SERVING, Event.KNOWN)}
    for state in READING:
        assert NEXT[state][Event.ENDING] is State.FINISHING
        assert NEXT[state][Event.GONE] is State.CLOSED
