"""What the log says in the end of who wrote what in which transaction, and how each was decided."""

from collections.abc import Sequence

from weir.testing.kafka.history import KafkaOp
from weir.testing.log_history import LogOpKind
from weir.testing.operations import of

#: The group whose positions move in transactions.
PIPE = "pipe"
#: Why a member joins: it is there again, or for the first time; it wants the work divided anew; it was told to.
BACK, ANEW, TOLD = "back", "anew", "told"


class Truth:
    """An index over a history. Transactions are named by tokens, which their messages begin with."""

    def __init__(self, ops: Sequence[KafkaOp]) -> None:
        #: Messages of each partition in the order of the log; those of transactions with their markers.
        self.log: dict[str, list[KafkaOp]] = {}
        self.transactional: dict[str, list[tuple[KafkaOp, KafkaOp | None]]] = {}
        self.content: dict[tuple[str, str], KafkaOp] = {}
        self.tokens: dict[str, list[KafkaOp]] = {}
        #: How each transaction was to be ended.
        self.ends: dict[str, KafkaOp] = {op.token: op for op in of(ops, LogOpKind.END)}
        #: The word of the final reader that it has read everything, if it has.
        self.complete: KafkaOp | None = next(iter(of(ops, LogOpKind.READ_ALL)), None)
        self._markers: dict[tuple[str, str], KafkaOp] = {}
        self._aborted: dict[str, None] = {}
        self._committed: dict[str, None] = {}
        self._read(ops)

    def _read(self, ops: Sequence[KafkaOp]) -> None:
        open_messages: dict[tuple[str, int], list[KafkaOp]] = {}
        for op in ops:
            if op.kind is LogOpKind.CONTENT:
                self.log.setdefault(op.part, []).append(op)
                self.content[op.part, op.payload] = op
                if op.token:
                    self.tokens.setdefault(op.token, []).append(op)
                    open_messages.setdefault((op.part, op.producer), []).append(op)
            elif op.kind is LogOpKind.MARKER:
                for message in open_messages.pop((op.part, op.producer), []):
                    self._markers[op.part, message.payload] = op
                    (self._committed if op.commits else self._aborted)[message.token] = None
        for part, messages in self.log.items():
            self.transactional[part] = [
                (message, self._markers.get((part, message.payload))) for message in messages if message.token
            ]

    def token_of(self, op: KafkaOp) -> str | None:
        """The transaction of a message that somebody got, if it is of one and in the log."""
        there = self.content.get((op.part, op.payload))
        return None if there is None else there.token or None

    def marker_of(self, part: str, payload: str) -> KafkaOp | None:
        return self._markers.get((part, payload))

    def is_aborted(self, token: str) -> bool:
        return token in self._aborted

    def is_committed(self, token: str) -> bool:
        return token in self._committed

    def is_visible(self, message: KafkaOp) -> bool:
        """Whether a message of the log is for those who read committed."""
        marker = self._markers.get((message.part, message.payload))
        return not message.token or (marker is not None and marker.commits)
