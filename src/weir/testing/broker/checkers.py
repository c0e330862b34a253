"""What brokers promise, as pure functions from a history to the places where a promise was broken.

Each checker is one promise; sentences name only the facts in conflict, so that the shrinker can leave the rest
out. What the final reader found (CONTENT) is the topic; its order is the order of the log.

What counts as what, exactly:
- A publish that failed or was never answered may be stored or not, also later, and more than once if it was sent
  more than once and deduplication is off.
- An acknowledgement binds once it is answered. From then on the message comes no more on the same connection, nor
  on any connection whose consumer was subscribed after the answer. On other connections it may be under way.
- Someone who seeks back wants to see again what was acknowledged; someone who seeks forward does not want what
  lies between. A seek without an answer may have happened or not.
- Order is the order of first deliveries: what was given back, or not acknowledged when its consumer left, comes
  again later. Nothing is delivered for the first time before something that stands before it (in an exclusive or
  failover subscription; for key-shared ones, before something of the same key).
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from weir.testing.broker.history import BrokerOp, MessagePosition
from weir.testing.checking import Checker, Violation
from weir.testing.leading import Led, going_back
from weir.testing.log_checkers import (
    acknowledged_is_stored,
    all_is_available_after_healing,
    delays_are_kept,
    producers_order_is_kept,
    receipts_say_where,
    stored_once,
    what_was_seen_stays,
)
from weir.testing.log_history import LogOpKind
from weir.testing.operations import grouped, of

#: A subscription of a topic.
_Sub = tuple[str, str]


# --- what is stored -------------------------------------------------------------------------------------------


def places_are_dense(ops: Sequence[BrokerOp]) -> list[Violation]:
    """Within a ledger, each message's place follows from the one before it; ids only grow along the topic."""
    promise = "places are dense and grow along the topic"
    found = []
    for one, two in pairwise(of(ops, LogOpKind.CONTENT)):
        if one.place is None or two.place is None or one.topic != two.topic or two.began != one.began + 2:
            continue  # of another topic, or something between them was left out
        if two.place <= one.place:
            sentence = f"{two.payload} at {two.place} stands behind {one.payload} at {one.place} in {one.topic}"
            found.append(Violation(promise, sentence, (one, two)))
        elif two.place != _next_place(one, two.place.ledger):
            sentence = f"between {one.place} and {two.place} of {one.topic} there is a hole"
            found.append(Violation(promise, sentence, (one, two)))
    return found


def _next_place(op: BrokerOp, ledger: int) -> MessagePosition | None:
    """Where the next message stands, if it is in this ledger."""
    if op.place is None:
        return None
    if op.place.message + 1 < op.batch:
        return op.place._replace(message=op.place.message + 1)
    return MessagePosition(ledger, op.place.entry + max(1, op.batch) if ledger == op.place.ledger else 0)


def receipts_are_in_order(ops: Sequence[BrokerOp]) -> list[Violation]:
    """On one connection, the receipts of a producer come in the order of its sends, whichever way each takes."""
    promise = "receipts of a producer come in the order of its sends"
    sent: dict[tuple[str, str, int, str], BrokerOp] = {}
    for op in of(ops, LogOpKind.PUBLISH):
        sent.setdefault((*_connection(op), op.payload), op)
    found = []
    for connection, receipts in grouped(of(ops, LogOpKind.RECEIPT), _connection).items():
        told = [(sent[*connection, op.payload], op) for op in receipts if (*connection, op.payload) in sent]
        for (one, first), (two, second) in pairwise(told):
            if two.began < one.began:
                sentence = (
                    f"{two.payload} was sent before {one.payload} to {one.topic}, and its receipt came after"
                )
                found.append(Violation(promise, sentence, (two, one, first, second)))
    return found


# --- what is delivered ----------------------------------------------------------------------------------------


def everything_is_delivered(ops: Sequence[BrokerOp]) -> list[Violation]:
    """What nobody acknowledged in a subscription, or skipped by a seek, the last consumer gets."""
    promise = "everything is delivered to every subscription until it is acknowledged"
    rank = _Rank(ops)
    acked, seeks = _asked_to_ack(ops), _by_sub(of(ops, LogOpKind.SEEK))
    last = {(*_sub(op), op.place) for op in of(ops, LogOpKind.DELIVER) if op.final}
    found = []
    for end in of(ops, LogOpKind.DRAINED):
        sub = _sub(end)
        highest = max((rank.of(op) for op in of(ops, LogOpKind.ACK_UP_TO) if _sub(op) == sub), default=(-1,))
        for op in of(ops, LogOpKind.CONTENT):
            if op.topic != end.topic or (*sub, op.place) in last or (*sub, op.place) in acked:
                continue
            if rank.of(op) <= highest or any(rank.of(seek) > rank.of(op) for seek in seeks.get(sub, ())):
                continue
            sentence = f"{op.payload} at {op.place} of {op.topic} never came to {end.subscription}"
            found.append(Violation(promise, sentence, (op, end)))
    return found


def acknowledged_comes_no_more(ops: Sequence[BrokerOp]) -> list[Violation]:
    """Once an acknowledgement is answered, the message does not come again, whatever crashes."""
    promise = "what was acknowledged comes no more"
    rank = _Rank(ops)
    subscribed = {op.client: op for op in of(ops, LogOpKind.SUBSCRIBE)}
    seeks = _by_sub(of(ops, LogOpKind.SEEK))
    single: dict[tuple[str, str, MessagePosition | None], list[BrokerOp]] = {}
    for op in of(ops, LogOpKind.ACK):
        if op.ok:
            single.setdefault((*_sub(op), op.place), []).append(op)
    up_to = _by_sub(op for op in of(ops, LogOpKind.ACK_UP_TO) if op.ok)
    found = []
    for op in of(ops, LogOpKind.DELIVER):
        acks = [
            *single.get((*_sub(op), op.place), ()),
            *(ack for ack in up_to.get(_sub(op), ()) if rank.of(ack) >= rank.of(op)),
        ]
        for ack in acks:
            begun = subscribed.get(op.client)
            after = op.client == ack.client or (begun is not None and begun.began > ack.over)
            if op.began < ack.over or not after or _sought_back(seeks.get(_sub(op), ()), ack, op, rank):
                continue
            sentence = (
                f"{ack.place} of {op.topic}/{op.subscription} was acknowledged by {ack.client}, "
                f"and {op.place} came again to {op.client}"
            )
            evidence = (ack, op) if begun is None else (ack, begun, op)
            found.append(Violation(promise, sentence, evidence))
            break
    return found


def _sought_back(seeks: Iterable[BrokerOp], ack: BrokerOp, op: BrokerOp, rank: "_Rank") -> bool:
    """Whether someone may have moved the subscription back between the acknowledgement and the delivery."""
    return any(
        rank.of(seek) <= rank.of(op) and seek.began < op.began and (seek.ended is None or seek.ended > ack.began)
        for seek in seeks
    )


def deliveries_are_in_order(ops: Sequence[BrokerOp]) -> list[Violation]:
    """Nothing is delivered for the first time before what stands before it."""
    promise = "messages are delivered in order"
    found = []
    seeks = _by_sub(of(ops, LogOpKind.SEEK))
    rank = _Rank(ops)
    delivered = _by_sub(of(ops, LogOpKind.DELIVER))
    content: dict[str, list[BrokerOp]] = {}
    for op in of(ops, LogOpKind.CONTENT):
        content.setdefault(op.topic, []).append(op)
    for sub, deliveries in delivered.items():
        if sub[1] == "shared":
            continue
        lanes: dict[str | None, list[BrokerOp]] = {}
        for op in content.get(sub[0], []):
            if sub[1] != "key-shared" or op.key is not None:
                lanes.setdefault(op.key if sub[1] == "key-shared" else None, []).append(op)
        for lane in lanes.values():
            found += _lane_in_order(promise, lane, deliveries, seeks.get(sub, ()), rank)
    return found


def _lane_in_order(
    promise: str,
    lane: list[BrokerOp],
    deliveries: Sequence[BrokerOp],
    seeks: Sequence[BrokerOp],
    rank: "_Rank",
) -> list[Violation]:
    places = {op.place: at for at, op in enumerate(lane)}
    seen: dict[MessagePosition | None, None] = {}
    expected = 0
    for op in deliveries:
        if op.place not in places or op.place in seen:
            continue
        seen[op.place] = None
        while expected < places[op.place]:
            missing = lane[expected]
            if missing.place not in seen and not any(
                seek.began < op.began and rank.of(seek) > rank.of(missing) for seek in seeks
            ):
                sentence = (
                    f"{op.client} got {op.place} of {op.topic}/{op.subscription} before anyone got {missing.place}"
                )
                return [Violation(promise, sentence, (missing, lane[places[op.place]], op))]
            expected += 1
    return []


def one_holder_at_a_time(ops: Sequence[BrokerOp]) -> list[Violation]:
    """A message, and in a key-shared subscription a key, is in the hands of one consumer at a time.

    Both consumers must be known to live on the same broker while it happens: each has an acknowledgement answered
    afterwards, on the connection on which the messages came.
    """
    promise = "a message, or a key, is with one consumer at a time"
    broker = {op.client: op.broker for op in of(ops, LogOpKind.SUBSCRIBE)}
    acks = {(op.client, op.place): op for op in of(ops, LogOpKind.ACK) if op.ok}
    tries = _by_sub(of(ops, LogOpKind.ACK))
    given_back = {(op.client, op.place[:2]) for op in of(ops, LogOpKind.REDELIVER) if op.place is not None}
    found = []
    for sub, deliveries in _by_sub(of(ops, LogOpKind.DELIVER)).items():
        if sub[1] not in ("shared", "key-shared"):
            continue
        steady = [
            (op, acks[op.client, op.place])
            for op in deliveries
            if (op.client, op.place) in acks
            and op.place is not None
            and (op.client, op.place[:2]) not in given_back
            and acks[op.client, op.place].began > op.began
        ]
        for at, (one, ack) in enumerate(steady):
            for two, _ in steady[at + 1 :]:
                if two.began > ack.began:
                    break
                same_key = sub[1] == "key-shared" and one.key is not None and one.key == two.key
                if one.client == two.client or not (one.place == two.place or same_key):
                    continue
                if any(
                    other.place == one.place and other is not ack and other.began < two.began
                    for other in tries.get(sub, ())
                ):
                    continue  # someone who had it before has acknowledged it, and it is nobody's any more
                if broker.get(one.client) is None or broker.get(one.client) != broker.get(two.client):
                    continue
                sentence = (
                    f"{two.client} got {two.place} of {two.topic}/{two.subscription} "
                    f"while {one.client} had {one.place}"
                )
                found.append(Violation(promise, sentence, (one, two, ack, acks[two.client, two.place])))
    return found


def cancelled_never_comes(ops: Sequence[BrokerOp]) -> list[Violation]:
    """A cancelled message is never stored (if it was sent only once)."""
    promise = "a cancelled message is never seen"
    sent: dict[tuple[str, str | None], int] = {}
    for op in of(ops, LogOpKind.PUBLISH):
        sent[op.topic, op.payload] = sent.get((op.topic, op.payload), 0) + (1 if not op.once else 0)
    stored = {(op.topic, op.payload): op for op in of(ops, LogOpKind.CONTENT)}
    found = []
    for op in of(ops, LogOpKind.CANCEL):
        there = stored.get((op.topic, op.payload))
        if op.ok and there is not None and sent.get((op.topic, op.payload), 0) <= 1:
            sentence = f"{op.payload} of {op.topic} was cancelled and stands at {there.place}"
            found.append(Violation(promise, sentence, (op, there)))
    return found


def seeks_are_kept(ops: Sequence[BrokerOp]) -> list[Violation]:
    """Once a seek is answered, everything from there on comes again."""
    promise = "after a seek everything from there on comes again"
    rank = _Rank(ops)
    delivered: dict[tuple[str, str, MessagePosition | None], int] = {}
    for op in of(ops, LogOpKind.DELIVER):
        delivered[*_sub(op), op.place] = op.began
    seeks = _by_sub(of(ops, LogOpKind.SEEK))
    found = []
    for end in of(ops, LogOpKind.DRAINED):
        for seek in seeks.get(_sub(end), ()):
            others = [
                op for op in seeks[_sub(end)] if op is not seek and (op.ended is None or op.ended > seek.began)
            ]
            if not seek.ok:
                continue
            for op in of(ops, LogOpKind.CONTENT):
                if op.topic != seek.topic or rank.of(op) < rank.of(seek):
                    continue
                if delivered.get((*_sub(seek), op.place), -1) > seek.began:
                    continue
                if any(rank.of(other) > rank.of(op) for other in others) or _acked_after(ops, seek, op, rank):
                    continue
                sentence = (
                    f"{seek.client} moved {seek.topic}/{seek.subscription} to {seek.place}, "
                    f"and {op.place} did not come again"
                )
                found.append(Violation(promise, sentence, (seek, op, end)))
    return found


def _acked_after(ops: Sequence[BrokerOp], seek: BrokerOp, op: BrokerOp, rank: "_Rank") -> bool:
    """Whether someone acknowledged it while or after the seek: on an old connection, say."""
    return any(
        _sub(ack) == _sub(seek)
        and (ack.ended is None or ack.ended > seek.began)
        and (ack.place == op.place if ack.kind is LogOpKind.ACK else rank.of(ack) >= rank.of(op))
        for ack in ops
        if ack.kind in (LogOpKind.ACK, LogOpKind.ACK_UP_TO)
    )


# --- who leads ------------------------------------------------------------------------------------------------


def epochs_never_go_back(ops: Sequence[BrokerOp]) -> list[Violation]:
    """The leader epoch of a bundle grows with each change of hands, and its halves go on where it was."""
    return going_back((op, Led(op.topic, op.broker, op.epoch)) for op in of(ops, LogOpKind.LED))


CHECKERS: tuple[Checker, ...] = (
    all_is_available_after_healing,
    acknowledged_is_stored,
    receipts_say_where,
    receipts_are_in_order,
    stored_once,
    producers_order_is_kept,
    places_are_dense,
    what_was_seen_stays,
    everything_is_delivered,
    acknowledged_comes_no_more,
    deliveries_are_in_order,
    one_holder_at_a_time,
    delays_are_kept,
    cancelled_never_comes,
    seeks_are_kept,
    epochs_never_go_back,
)


# --- selections -----------------------------------------------------------------------------------------------


class _Rank:
    """Where a place stands in the log's order: ledgers stand in the order in which the final reader met them."""

    def __init__(self, ops: Sequence[BrokerOp]) -> None:
        self._ledgers: dict[tuple[str, int], int] = {}
        for op in of(ops, LogOpKind.CONTENT):
            if op.place is not None:
                self._ledgers.setdefault((op.topic, op.place.ledger), op.began)

    def of(self, op: BrokerOp) -> tuple[int, ...]:
        """Comparable within a topic; a place before the first message, or in no ledger of the log, comes first."""
        if op.place is None or (op.topic, op.place.ledger) not in self._ledgers:
            return (-1,)
        return (self._ledgers[op.topic, op.place.ledger], op.place.entry, op.place.message)


def _sub(op: BrokerOp) -> _Sub:
    return (op.topic, op.subscription)


def _connection(op: BrokerOp) -> tuple[str, str, int]:
    return (op.topic, op.client, op.session)


def _by_sub(ops: Iterable[BrokerOp]) -> dict[_Sub, list[BrokerOp]]:
    return grouped(ops, _sub)


def _asked_to_ack(ops: Iterable[BrokerOp]) -> set[tuple[str, str, MessagePosition | None]]:
    return {(*_sub(op), op.place) for op in of(ops, LogOpKind.ACK)}
