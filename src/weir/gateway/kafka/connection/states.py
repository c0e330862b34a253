"""Where a session stands, and what moves it, as a table."""

from enum import Enum


class State(Enum):
    NAMELESS = "serves only what tells who the client is"
    SERVING = "serves requests; whether a token has ended since, the credentials know"
    FINISHING = "takes nothing more, and stores what it took"
    CLOSED = "is over"


class Event(Enum):
    KNOWN = "the client has said who it is, perhaps anew, or need not"
    ENDING = "bad input, the client hung up, or the server wants to stop"
    GONE = "nothing is left to finish, or there is no time for it"


#: Every legal move; a missing one is a bug. A proof that was under way may succeed when the session is ending.
NEXT: dict[State, dict[Event, State]] = {
    State.NAMELESS: {Event.KNOWN: State.SERVING, Event.ENDING: State.FINISHING, Event.GONE: State.CLOSED},
    State.SERVING: {Event.KNOWN: State.SERVING, Event.ENDING: State.FINISHING, Event.GONE: State.CLOSED},
    State.FINISHING: {Event.KNOWN: State.FINISHING, Event.ENDING: State.FINISHING, Event.GONE: State.CLOSED},
    State.CLOSED: {Event.KNOWN: State.CLOSED, Event.ENDING: State.CLOSED, Event.GONE: State.CLOSED},
}
#: The states in which a session reads.
READING = (State.NAMELESS, State.SERVING)
