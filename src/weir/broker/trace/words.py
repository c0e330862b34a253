"""Why a message is delivered no more, as traces say it."""

from weir.wire.amqp.death import Reason

_WORDS = {
    Reason.REJECTED: "rejected",
    Reason.EXPIRED: "expired: its time to live was over",
    Reason.MAX_LENGTH: "the queue was full",
    Reason.DELIVERY_LIMIT: "delivered too often",
    Reason.REDRIVEN: "put back where it came from",
}


def given_up_words(reason: Reason, *, letters: bool) -> str:
    """`letters`: it becomes a dead letter."""
    words = _WORDS.get(reason, reason.value)
    return f"dead letter: {words}" if letters and reason is not Reason.REDRIVEN else words
