"""What clients of brokers asked and were told, whichever protocol they speak: operations on messages in logs.

A log is a topic, or a partition of one. A delivery is written down when it arrives at the client, before any of
the client's own queues, so that "arrived after the acknowledgement was answered" is never in doubt on one
connection.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from weir.testing.operations import Operation


class LogOpKind(Enum):
    """What was asked, or what happened."""

    #: A message was sent; one operation for each time.
    PUBLISH = "publish"
    #: A producer's connection brought a receipt, of the entry that begins with this message.
    RECEIPT = "receipt"
    #: A message was sent in a transaction, to be seen later if that is committed.
    DELAY = "delay"
    #: A delayed message was to be cancelled.
    CANCEL = "cancel"
    #: A reader of a log, or a member of a group, got a message.
    READ = "read"
    #: A consumer of a subscription got a message.
    DELIVER = "deliver"
    #: The final reader found a message in its log.
    CONTENT = "content"
    #: The final reader has read the log to its end; the final consumer has emptied the subscription.
    READ_ALL = "read-all"
    DRAINED = "drained"
    #: Something could not be had in the end.
    MISSING = "missing"

    # --- of subscriptions
    SUBSCRIBE = "subscribe"
    ACK = "ack"
    ACK_UP_TO = "ack-up-to"
    #: A whole entry was given back.
    REDELIVER = "redeliver"
    SEEK = "seek"

    # --- of Kafka's clients
    #: The first of what an idempotent producer has under way was refused as being out of order.
    REFUSED = "refused"
    #: Something else was sent under sequence numbers that were used before.
    OVERWRITE = "overwrite"
    #: A partition told how far it goes (`high`, `stable`).
    MARKS = "marks"
    #: A member joined, was told its share (`owned`), had a heartbeat answered, or wanted to leave.
    JOIN = "join"
    ASSIGNED = "assigned"
    HEARD = "heard"
    LEFT = "left"
    #: The metadata tells who has a range of topics, in which leader epoch; -1: there is no such range any more.
    LED = "led"
    #: Another broker is active from now on; the former one may not know it yet.
    TOOK_OVER = "took-over"
    #: A partition was read at its leader (`host`), as of an epoch (`offset`).
    LEADER = "leader"
    #: A position was asked for (`offset`), in a transaction or not.
    COMMIT = "commit"
    #: A position was told.
    POSITION = "position"
    #: Everything before an offset was to be forgotten.
    DELETE = "delete"
    #: A message was sent to a compacted topic, found there by a reader; who has read all of it.
    PUT = "put"
    ROW = "row"
    SCANNED = "scanned"
    #: A transaction was to be ended.
    END = "end"
    #: The final reader found a marker, or saw a message among what is committed.
    MARKER = "marker"
    VISIBLE = "visible"


@dataclass(frozen=True, slots=True)
class LogOp(Operation):
    """One operation of one client, in one of its lives."""

    payload: str = ""
    key: str | None = None
    #: PUBLISH: sending again is harmless (deduplication is on, or the producer idempotent).
    once: bool = False
    #: PUBLISH, DELAY: nobody may see it before this virtual time, by a clock that is as wrong as clocks may be.
    due_at: float | None = None
    #: READ_ALL: where the log begins, if its beginning was deleted.
    start: Any = None

    @property
    def log(self) -> str:
        """Which log."""
        raise NotImplementedError

    @property
    def spot(self) -> Any:
        """Where in the log; None if that is not known."""
        raise NotImplementedError
