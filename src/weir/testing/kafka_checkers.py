"""What Weir promises to Kafka's clients, as pure functions from a history to the places where a promise is broken.

Each checker is one promise. The log is what the final reader found (CONTENT, MARKER); a transaction is committed,
aborted or open as its markers in the log say. What counts as what, exactly:
- A publish that failed or was never answered may be stored or not, also later; more than once only if its producer
  is a plain one.
- A commit of a position that failed without a word from the broker may take effect, also later, but not after a
  later generation of its group has committed.
- The end of a transaction that was not answered may be either; whatever it is, it is so for all of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weir.testing.history import Outcome
from weir.testing.kafka_history import KafkaKind, KafkaOp
from weir.testing.kafka_truth import PIPE, Truth, of


@dataclass(frozen=True, slots=True)
class KafkaViolation:
    """A promise that this history breaks, and where."""

    promise: str
    sentence: str
    evidence: tuple[KafkaOp, ...]

    def __str__(self) -> str:
        return f"{self.promise}: {self.sentence}"


KafkaChecker = Callable[[Sequence[KafkaOp]], list[KafkaViolation]]


# --- what is stored -------------------------------------------------------------------------------------------


def acknowledged_is_stored(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """What a producer was told is stored is in the partition in the end."""
    promise = "an acknowledged message is never lost"
    stored = {(op.part, op.payload) for op in of(ops, KafkaKind.CONTENT)}
    ends = {op.part: op for op in of(ops, KafkaKind.READ_ALL)}
    return [
        KafkaViolation(
            promise,
            f"{ack.payload} was acknowledged to {ack.client} and is not in {ack.part}",
            (ack, ends[ack.part]),
        )
        for ack in of(ops, KafkaKind.PUBLISH)
        if ack.ok and ack.part in ends and (ack.part, ack.payload) not in stored
    ]


def receipts_say_where(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """The offset in a receipt is where the message is."""
    promise = "an acknowledged message is where its receipt says"
    content = {(op.part, op.offset): op for op in of(ops, KafkaKind.CONTENT)}
    found = []
    for ack in of(ops, KafkaKind.PUBLISH):
        there = content.get((ack.part, ack.offset)) if ack.ok and ack.offset >= 0 else None
        if there is not None and there.payload != ack.payload:
            sentence = f"{ack.payload} was acknowledged at {ack.part}@{ack.offset}, where {there.payload} stands"
            found.append(KafkaViolation(promise, sentence, (ack, there)))
    return found


def stored_once(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """An idempotent producer's message is stored once; a plain one's not more often than it was sent."""
    promise = "nothing of an idempotent producer is stored twice"
    sent = _grouped(of(ops, KafkaKind.PUBLISH))
    found = []
    for message, stored in _grouped(of(ops, KafkaKind.CONTENT)).items():
        attempts = sent.get(message, [])
        most = 1 if any(op.once for op in attempts) else len(attempts)
        if attempts and len(stored) > most:
            sentence = f"{message[1]} stands {len(stored)} times in {message[0]}, {most} at the most is right"
            found.append(KafkaViolation(promise, sentence, (*attempts, *stored)))
    return found


def producers_order_is_kept(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """Messages of one producer stand in a partition as it first sent them, in order and without holes."""
    promise = "messages of a producer are stored in the order in which it sent them"
    sent: dict[tuple[str, str], dict[str, KafkaOp]] = {}
    for op in of(ops, KafkaKind.PUBLISH):
        sent.setdefault((op.part, op.client), {}).setdefault(op.payload, op)
    content: dict[str, list[KafkaOp]] = {}
    for op in of(ops, KafkaKind.CONTENT):
        content.setdefault(op.part, []).append(op)
    found = []
    for (part, _), messages in sent.items():
        order = iter(messages)
        seen: dict[str, None] = {}
        for op in content.get(part, []):
            if op.payload not in messages or op.payload in seen:
                continue
            seen[op.payload] = None
            expected = next(order)
            if expected != op.payload:
                sentence = f"{op.payload} stands in {part} without {expected}, which was sent before it"
                found.append(KafkaViolation(promise, sentence, (messages[expected], messages[op.payload], op)))
                break
    return found


def producers_can_go_on(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """An idempotent producer that leaves nothing out is never told that it does."""
    promise = "a producer that sends in order is never out of order"
    return [
        KafkaViolation(promise, f"{op.payload} of {op.client} was refused by {op.part}", (op,))
        for op in of(ops, KafkaKind.REFUSED)
    ]


def offsets_are_dense(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """Each offset of a partition has a message or a marker, and only one."""
    promise = "offsets are dense"
    found = []
    log = [op for op in ops if op.kind in (KafkaKind.CONTENT, KafkaKind.MARKER)]
    for one, two in pairwise(log):
        if one.part == two.part and two.began == one.began + 2 and two.offset != one.offset + 1:
            sentence = f"{two.offset} follows {one.offset} in {one.part}"
            found.append(KafkaViolation(promise, sentence, (one, two)))
    return found


# --- what is read ---------------------------------------------------------------------------------------------


def what_was_read_stays(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """What was ever read is there for good, with the same content."""
    promise = "what was read stays where it was"
    content = {(op.part, op.offset): op for op in of(ops, KafkaKind.CONTENT)}
    ends = {op.part: op for op in of(ops, KafkaKind.READ_ALL)}
    found = []
    for op in of(ops, KafkaKind.READ):
        there = content.get((op.part, op.offset))
        if there is not None and there.payload != op.payload:
            sentence = f"{op.client} read {op.payload} at {op.part}@{op.offset}, where {there.payload} stands"
            found.append(KafkaViolation(promise, sentence, (op, there)))
        elif there is None and op.part in ends:
            sentence = f"{op.client} read {op.payload} at {op.part}@{op.offset}, where nothing is in the end"
            found.append(KafkaViolation(promise, sentence, (op, ends[op.part])))
    return found


def only_committed_is_read(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """Who reads committed gets nothing of a transaction that was aborted, or that nobody has ended yet."""
    promise = "who reads committed gets nothing that is aborted or undecided"
    truth = Truth(ops)
    found = []
    for op in ops:
        committed = op.kind is KafkaKind.READ and op.commits
        if not committed and op.kind not in (KafkaKind.DELIVER, KafkaKind.VISIBLE):
            continue
        token = truth.token_of(op)
        if token is None:
            continue
        decided = truth.marker_of(op.part, op.payload)
        asked = truth.ends.get(token)
        if decided is not None and not decided.commits:
            sentence = f"{op.client} got {op.payload} of {op.part}, which was aborted"
            found.append(KafkaViolation(promise, sentence, (op, truth.content[op.part, op.payload], decided)))
        elif (asked is None or not asked.commits or asked.began > (op.ended or op.began)) and truth.complete:
            sentence = f"{op.client} got {op.payload} of {op.part} before anybody asked for {token} to commit"
            found.append(KafkaViolation(promise, sentence, (op, truth.complete, *([asked] if asked else []))))
    return found


def stable_offset_is_true(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """Before the stable offset that a partition tells, everything is decided within what it tells as its end."""
    promise = "the stable offset never passes an open transaction"
    truth = Truth(ops)
    found = []
    for marks in of(ops, KafkaKind.MARKS):
        for message, marker in truth.transactional.get(marks.part, []):
            if message.offset < marks.stable and (marker is None or marker.offset >= marks.high):
                sentence = (
                    f"{marks.part}@{message.offset} is of an open transaction, and {marks.client} was told that "
                    f"{marks.stable} is stable"
                )
                evidence = (marks, message) if marker is None else (marks, message, marker)
                found.append(KafkaViolation(promise, sentence, evidence))
                break
    return found


def readers_skip_nothing(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """A reader gets everything between the first and the last that it reads, but for what it must not see."""
    promise = "a reader gets everything that is there for it"
    truth = Truth(ops)
    seen: dict[tuple[str, str, bool], dict[int, KafkaOp]] = {}
    for op in of(ops, KafkaKind.READ):
        if not op.group:
            seen.setdefault((op.client, op.part, op.commits), {})[op.offset] = op
    found = []
    for (client, part, committed), reads in seen.items():
        first, last = min(reads), max(reads)
        for message in truth.log.get(part, []):
            if first < message.offset < last and message.offset not in reads:
                if committed and not truth.is_visible(message):
                    continue
                sentence = f"{client} read {part} from {first} to {last} and never got {message.payload}"
                found.append(KafkaViolation(promise, sentence, (reads[first], message, reads[last])))
                break
    return found


def everything_is_seen_in_the_end(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """After quiet, everything is decided, and what is committed can be read, by whatever protocol."""
    promise = "after quiet, everything is decided and readable"
    truth = Truth(ops)
    visible = {(op.part, op.offset) for op in of(ops, KafkaKind.VISIBLE)}
    delivered = {(op.part, op.payload) for op in of(ops, KafkaKind.DELIVER)}
    drained = {op.part: op for op in of(ops, KafkaKind.DRAINED)}
    found = []
    for end in of(ops, KafkaKind.READ_ALL):
        for message, marker in truth.transactional.get(end.part, []):
            if marker is None:
                sentence = f"{message.payload} of {end.part} is still undecided"
                found.append(KafkaViolation(promise, sentence, (message, end)))
        for message in truth.log.get(end.part, []):
            if not truth.is_visible(message):
                continue
            if (end.part, message.offset) not in visible:
                sentence = f"{message.payload} of {end.part} cannot be read as committed"
                found.append(KafkaViolation(promise, sentence, (message, end)))
            if end.part in drained and (end.part, message.payload) not in delivered:
                sentence = f"{message.payload} of {end.part} never came to the subscription"
                found.append(KafkaViolation(promise, sentence, (message, drained[end.part])))
    return found


def all_is_available_after_healing(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """With everything healed, partitions can be read to their ends, and groups have positions and members."""
    promise = "after all faults are healed, everything is available again"
    return [
        KafkaViolation(promise, f"{op.part or op.group} is not: {op.error}", (op,))
        for op in of(ops, KafkaKind.MISSING)
    ]


# --- transactions ---------------------------------------------------------------------------------------------


def transactions_are_atomic(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """A transaction is committed in every partition that it wrote to, or in none, and as was answered."""
    promise = "a transaction is committed as a whole, or not at all"
    truth = Truth(ops)
    found = []
    for token, messages in truth.tokens.items():
        end = truth.ends.get(token)
        decided = [(message, truth.marker_of(message.part, message.payload)) for message in messages]
        yes = [(message, marker) for message, marker in decided if marker is not None and marker.commits]
        no = [(message, marker) for message, marker in decided if marker is not None and not marker.commits]
        wrong = (no if end.commits else yes) if end is not None and end.ok else []
        if yes and no:
            sentence = f"{token} is committed in {yes[0][0].part} and aborted in {no[0][0].part}"
            found.append(KafkaViolation(promise, sentence, (*yes[0], *no[0])))
        if end is not None and wrong:
            word = "aborted" if end.commits else "committed"
            sentence = f"{token} was ended as {end.client} asked, and {wrong[0][0].payload} is {word}"
            found.append(KafkaViolation(promise, sentence, (end, *wrong[0])))
        if end is not None and yes and not end.commits:
            sentence = f"{token} was to be aborted, and {yes[0][0].payload} is committed"
            found.append(KafkaViolation(promise, sentence, (end, *yes[0])))
    return found


def processed_exactly_once(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """What a pipeline has moved past was processed once, what it has not was never."""
    promise = "every message is processed exactly once"
    truth = Truth(ops)
    if of(ops, KafkaKind.MISSING):
        return []  # who has not seen everything cannot tell
    outcomes: dict[str, list[KafkaOp]] = {}
    for op in of(ops, KafkaKind.VISIBLE):
        _, _, text = op.payload.partition(f"|{PIPE}|")
        if text:
            outcomes.setdefault(text, []).append(op)
    found = []
    for end in of(ops, KafkaKind.POSITION):
        if not end.final or end.group != PIPE or not end.ok:
            continue
        for message in truth.log.get(end.part, []):
            came = outcomes.get(f"{end.part}@{message.offset}", [])
            due = 1 if truth.is_visible(message) and message.offset < end.offset else 0
            if len(came) != due and _all_read(ops):
                sentence = f"{end.part}@{message.offset} was processed {len(came)} times, {due} is right"
                found.append(KafkaViolation(promise, sentence, (message, end, *came, *_all_read(ops))))
    return found


# --- groups ---------------------------------------------------------------------------------------------------


def positions_are_kept(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """A group's position is what was committed last; it never moves back, nor on, unless somebody asks."""
    promise = "a position is where it was committed last"
    commits = _effective_commits(ops)
    found = []
    for told in of(ops, KafkaKind.POSITION):
        if not told.ok:
            continue
        mine = commits.get((told.group, told.part), [])
        before = [one for one in mine if one.ok_at is not None and one.ok_at < told.began]
        if told.offset < 0:
            for one in before[:1]:
                sentence = f"{told.group} committed {one.op.offset} on {told.part} and has no position"
                found.append(KafkaViolation(promise, sentence, (*one.evidence, told)))
            continue
        same = [one for one in mine if one.op.offset == told.offset and one.began < (told.ended or told.began)]
        if not same:
            sentence = f"{told.group} is at {told.part}@{told.offset}, which nobody committed"
            found.append(KafkaViolation(promise, sentence, (told, *_all_read(ops))))
            continue
        later = [two for two in before if all(one.is_before(two) for one in same)]
        if later:
            sentence = (
                f"{told.group} is at {told.part}@{told.offset}, and has committed {later[0].op.offset} since"
            )
            evidence = (*(op for one in same for op in one.evidence), *later[0].evidence, told)
            found.append(KafkaViolation(promise, sentence, evidence))
    return found


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit that took effect, or may have: from `began` on, and before `ok_at` if it was answered."""

    op: KafkaOp
    began: int
    ok_at: int | None
    evidence: tuple[KafkaOp, ...]

    def is_before(self, other: "_Commit") -> bool:
        """Whether it cannot have taken effect after the other."""
        if self.op.offset == other.op.offset:
            return False
        if self.ok_at is not None:
            return self.ok_at < other.began
        return not self.op.token and 0 <= self.op.generation < other.op.generation


def _effective_commits(ops: Sequence[KafkaOp]) -> dict[tuple[str, str], list[_Commit]]:
    truth = Truth(ops)
    found: dict[tuple[str, str], list[_Commit]] = {}
    for op in of(ops, KafkaKind.COMMIT):
        commits = found.setdefault((op.group, op.part), [])
        if not op.token:
            if op.outcome is not Outcome.FAILED or not op.error.startswith(_REFUSED):
                commits.append(_Commit(op, op.began, op.ended if op.ok else None, (op,)))
            continue
        end = truth.ends.get(op.token)
        if end is None or not end.commits or truth.is_aborted(op.token):
            continue
        commits.append(_Commit(op, end.began, end.ended if end.ok and op.ok else None, (op, end)))
    return found


#: What a group says to a commit that it does not take.
_REFUSED = tuple(
    f"the broker says {code}" for code in ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS")
)


def commits_are_of_their_generation(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """Once members have their shares in a generation, nobody commits in an earlier one."""
    promise = "nobody commits in a generation that is over"
    begun: dict[tuple[str, int], KafkaOp] = {}
    for op in of(ops, KafkaKind.ASSIGNED):
        begun.setdefault((op.group, op.generation), op)
    found = []
    for op in of(ops, KafkaKind.COMMIT):
        if not op.ok or op.generation < 0:
            continue
        later = [new for (group, at), new in begun.items() if group == op.group and at > op.generation]
        over = next((new for new in later if (new.ended or new.began) < op.began), None)
        if over is not None:
            sentence = (
                f"{op.client} committed {op.part}@{op.offset} in generation {op.generation} of {op.group}, "
                f"after {over.client} had its share in {over.generation}"
            )
            found.append(KafkaViolation(promise, sentence, (over, op)))
    return found


def one_owner_at_a_time(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """In one generation a partition is one member's; generations are never used twice."""
    promise = "in one generation a partition belongs to one member"
    owners: dict[tuple[str, int, str], KafkaOp] = {}
    found = []
    for op in of(ops, KafkaKind.ASSIGNED):
        other = owners.setdefault((op.group, op.generation, op.part), op)
        if other.member != op.member:
            sentence = (
                f"{op.part} is {other.client}'s and {op.client}'s in generation {op.generation} of {op.group}"
            )
            found.append(KafkaViolation(promise, sentence, (other, op)))
    return found


def groups_read_everything(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """What a group has moved past, one of its members has read."""
    promise = "a group reads everything that it moves past"
    truth = Truth(ops)
    read: dict[tuple[str, str], dict[int, KafkaOp]] = {}
    for op in of(ops, KafkaKind.READ):
        if op.group:
            read.setdefault((op.group, op.part), {})[op.offset] = op
    found = []
    for end in of(ops, KafkaKind.POSITION):
        reads = read.get((end.group, end.part))
        if not end.final or not end.ok or end.group == PIPE or not reads:
            continue
        committed = next(iter(reads.values())).commits
        for message in truth.log.get(end.part, []):
            if message.offset >= end.offset or message.offset in reads:
                continue
            if not committed or truth.is_visible(message):
                sentence = f"{end.group} is at {end.part}@{end.offset} and never read {message.payload}"
                found.append(KafkaViolation(promise, sentence, (message, end, next(iter(reads.values())))))
                break
    return found


CHECKERS: tuple[KafkaChecker, ...] = (
    all_is_available_after_healing,
    acknowledged_is_stored,
    receipts_say_where,
    stored_once,
    producers_order_is_kept,
    producers_can_go_on,
    offsets_are_dense,
    what_was_read_stays,
    only_committed_is_read,
    stable_offset_is_true,
    readers_skip_nothing,
    transactions_are_atomic,
    processed_exactly_once,
    positions_are_kept,
    commits_are_of_their_generation,
    one_owner_at_a_time,
    groups_read_everything,
    everything_is_seen_in_the_end,
)


def check_kafka_history(ops: Sequence[KafkaOp]) -> list[KafkaViolation]:
    """Every broken promise."""
    return [violation for checker in CHECKERS for violation in checker(ops)]


def _all_read(ops: Sequence[KafkaOp]) -> tuple[KafkaOp, ...]:
    """Only who has read everything can say that something is missing."""
    return tuple(of(ops, KafkaKind.READ_ALL))


def _grouped(ops: Iterable[KafkaOp]) -> dict[tuple[str, str], list[KafkaOp]]:
    found: dict[tuple[str, str], list[KafkaOp]] = {}
    for op in ops:
        found.setdefault((op.part, op.payload), []).append(op)
    return found
