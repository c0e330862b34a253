"""What Weir promises to members of Kafka's groups (see `kafka_checkers`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from weir.testing.checking import Violation
from weir.testing.kafka.history import KafkaOp
from weir.testing.kafka.truth import ANEW, BACK, PIPE, Truth
from weir.testing.log_history import LogOpKind
from weir.testing.operations import Outcome, of


def positions_are_kept(ops: Sequence[KafkaOp]) -> list[Violation]:
    """A group's position is what was committed last; it never moves back, nor on, unless somebody asks."""
    promise = "a position is where it was committed last"
    commits = _effective_commits(ops)
    found = []
    for told in of(ops, LogOpKind.POSITION):
        if not told.ok:
            continue
        mine = commits.get((told.group, told.part), [])
        before = [one for one in mine if one.ok_at is not None and one.ok_at < told.began]
        if told.offset < 0:
            for one in before[:1]:
                sentence = f"{told.group} committed {one.op.offset} on {told.part} and has no position"
                found.append(Violation(promise, sentence, (*one.evidence, told)))
            continue
        same = [one for one in mine if one.op.offset == told.offset and one.began < told.over]
        if not same:
            sentence = f"{told.group} is at {told.part}@{told.offset}, which nobody committed"
            found.append(Violation(promise, sentence, (told, *of(ops, LogOpKind.READ_ALL))))
            continue
        later = [two for two in before if all(one.is_before(two) for one in same)]
        if later:
            sentence = (
                f"{told.group} is at {told.part}@{told.offset}, and has committed {later[0].op.offset} since"
            )
            evidence = (*(op for one in same for op in one.evidence), *later[0].evidence, told)
            found.append(Violation(promise, sentence, evidence))
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
    for op in of(ops, LogOpKind.COMMIT):
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
    f"KafkaRefusedError: the broker says {code}"
    for code in ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID")
)


def commits_are_of_their_generation(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Once members have their shares in a generation, nobody commits in an earlier one."""
    promise = "nobody commits in a generation that is over"
    begun: dict[tuple[str, int], KafkaOp] = {}
    for op in of(ops, LogOpKind.ASSIGNED):
        begun.setdefault((op.group, op.generation), op)
    found = []
    for op in of(ops, LogOpKind.COMMIT):
        if not op.ok or op.generation < 0:
            continue
        later = [new for (group, at), new in begun.items() if group == op.group and at > op.generation]
        over = next((new for new in later if new.over < op.began), None)
        if over is not None:
            sentence = (
                f"{op.client} committed {op.part}@{op.offset} in generation {op.generation} of {op.group}, "
                f"after {over.client} had its share in {over.generation}"
            )
            found.append(Violation(promise, sentence, (over, op)))
    return found


def one_owner_at_a_time(ops: Sequence[KafkaOp]) -> list[Violation]:
    """In one generation a partition is one member's; generations are never used twice."""
    promise = "in one generation a partition belongs to one member"
    owners: dict[tuple[str, int, str], KafkaOp] = {}
    found = []
    for op in of(ops, LogOpKind.ASSIGNED):
        for part in op.owned:
            other = owners.setdefault((op.group, op.generation, part), op)
            if _who(other) == _who(op):
                continue
            sentence = f"{part} is {other.client}'s and {op.client}'s in generation {op.generation} of {op.group}"
            found.append(Violation(promise, sentence, (other, op)))
    return found


def groups_read_everything(ops: Sequence[KafkaOp]) -> list[Violation]:
    """What a group has moved past, one of its members has read."""
    promise = "a group reads everything that it moves past"
    truth = Truth(ops)
    read: dict[tuple[str, str], dict[int, KafkaOp]] = {}
    for op in of(ops, LogOpKind.READ):
        if op.group:
            read.setdefault((op.group, op.part), {})[op.offset] = op
    found = []
    for end in of(ops, LogOpKind.POSITION):
        reads = read.get((end.group, end.part))
        if not end.final or not end.ok or end.group == PIPE or not reads:
            continue
        committed = next(iter(reads.values())).commits
        for message in truth.log.get(end.part, []):
            if message.offset >= end.offset or message.offset in reads:
                continue
            if not committed or truth.is_visible(message):
                sentence = f"{end.group} is at {end.part}@{end.offset} and never read {message.payload}"
                found.append(Violation(promise, sentence, (message, end, next(iter(reads.values())))))
                break
    return found


def what_is_owned_stays(ops: Sequence[KafkaOp]) -> list[Violation]:
    """What a member has when it joins a generation is nobody else's in that generation.

    A coordinator that is lost before a generation is written down leaves its number to the next one, which gathers
    anew: joins on either side of a take-over, one over before the other began, are of two generations. Without a
    take-over in between a number is one generation, however far apart its joins are."""
    promise = "members that rebalance cooperatively keep what they have until they give it up"
    joins = [op for op in of(ops, LogOpKind.JOIN) if op.ok]
    owners = {(op.group, op.generation, part): op for op in joins for part in op.owned}
    joined = {(op.group, op.generation, _who(op)): op for op in joins}
    took_over = of(ops, LogOpKind.TOOK_OVER)
    found = []
    for op in of(ops, LogOpKind.ASSIGNED):
        own = joined.get((op.group, op.generation, _who(op)))
        for part in op.owned:
            owner = owners.get((op.group, op.generation, part))
            if owner is None or _who(owner) == _who(op):
                continue
            if own is not None and _are_apart(owner, own, took_over):
                continue
            sentence = (
                f"{part} was given to {op.client} in generation {op.generation} of {op.group}, which "
                f"{owner.client} joined with it"
            )
            found.append(Violation(promise, sentence, (owner, op)))
    return found


def _are_apart(one: KafkaOp, other: KafkaOp, took_over: Sequence[KafkaOp]) -> bool:
    """Whether two joins do not overlap, and someone else became the coordinator from the first to the second."""
    first, second = sorted((one, other), key=lambda op: op.began)
    return first.over < second.began and any(
        first.began < new.over and new.began < second.over for new in took_over
    )


def static_members_keep_their_share(ops: Sequence[KafkaOp]) -> list[Violation]:
    """A static member has one share in a generation, in however many lives."""
    promise = "a static member that is back has what it had"
    first: dict[tuple[str, str, int], KafkaOp] = {}
    found = []
    for op in of(ops, LogOpKind.ASSIGNED):
        before = first.setdefault((op.group, op.instance, op.generation), op) if op.instance else op
        if sorted(before.owned) != sorted(op.owned):
            sentence = (
                f"{op.instance} had {before.owned} in generation {op.generation} of {op.group} as "
                f"{before.client}, and has {op.owned} as {op.client}"
            )
            found.append(Violation(promise, sentence, (before, op)))
    return found


def former_selves_are_fenced(ops: Sequence[KafkaOp]) -> list[Violation]:
    """Once a static member is back, nobody commits under the id that it had before."""
    promise = "the former self of a static member is fenced"
    back = [op for op in of(ops, LogOpKind.JOIN) if op.ok and op.instance]
    found = []
    for op in of(ops, LogOpKind.COMMIT):
        if not op.ok or not op.instance:
            continue
        for join in back:
            same = (join.group, join.instance) == (op.group, op.instance)
            if same and join.member != op.member and join.over < op.began and not _is_later(op, join, back):
                sentence = (
                    f"{op.client} committed as {op.member}, and {op.instance} of {op.group} was another by then"
                )
                found.append(Violation(promise, sentence, (join, op)))
                break
    return found


def _is_later(op: KafkaOp, join: KafkaOp, joins: Sequence[KafkaOp]) -> bool:
    """Whether the member id of a commit came after another join of its instance."""
    return any(one.member == op.member and one.over > join.began for one in joins)


def restarts_divide_nothing_anew(ops: Sequence[KafkaOp]) -> list[Violation]:
    """A static member that is back within its session is in the same generation, unless there is another reason
    to divide the work anew. Checked as long as there has been one broker only: a member may be in touch with one,
    and silent to the other."""
    promise = "a static member that is back in time does not disturb the others"
    began = min((op.began for op in of(ops, LogOpKind.TOOK_OVER)), default=None)
    before = ops if began is None else [op for op in ops if op.over < began]
    found = []
    for back in of(before, LogOpKind.JOIN):
        if not back.ok or not back.instance or back.payload != BACK:
            continue
        shares = [
            op for op in of(before, LogOpKind.ASSIGNED) if (op.group, op.instance) == (back.group, back.instance)
        ]
        last = max((op for op in shares if op.over < back.began), key=lambda op: op.began, default=None)
        if last is not None and last.generation < back.generation and not Reasons(before, last, back).any():
            sentence = (
                f"{back.instance} was in generation {last.generation} of {back.group}, came back in time, and was "
                f"told that it is {back.generation}"
            )
            found.append(Violation(promise, sentence, (last, back)))
    return found


#: Clocks run fast or slow, and deadlines are not met to the millisecond.
_IN_TIME = 0.8


class Reasons:
    """Why the work of a group may have been divided anew between a member's last share and its coming back."""

    def __init__(self, ops: Sequence[KafkaOp], share: KafkaOp, back: KafkaOp) -> None:
        self._ops = [op for op in ops if op.group == share.group and op.began < back.over]
        self._share = share
        self._back = back

    def any(self) -> bool:
        since = [op for op in self._ops if op.over >= self._share.began or op.ended is None]
        if any(op.kind is LogOpKind.LEFT or op.payload == ANEW for op in since if op is not self._back):
            return True
        everyone = dict.fromkeys(op.instance for op in of(self._ops, LogOpKind.JOIN))
        return not all(self._was_in_touch(instance) for instance in everyone)

    def _was_in_touch(self, instance: str) -> bool:
        """Whether it had a share in that generation, and was never silent for long since."""
        mine = [op for op in self._ops if op.instance == instance and op.generation == self._share.generation]
        heard = [
            op for op in of(mine, LogOpKind.ASSIGNED, LogOpKind.HEARD, LogOpKind.COMMIT, LogOpKind.JOIN) if op.ok
        ]
        if not instance or not of(mine, LogOpKind.ASSIGNED):
            return False
        moments = [(op.began_at, op.ended_at or op.began_at) for op in heard]
        moments.append((self._back.began_at, self._back.ended_at or self._back.began_at))
        return all(two[1] - one[0] < _IN_TIME * self._back.session_s for one, two in pairwise(sorted(moments)))


def _who(op: KafkaOp) -> str:
    """A member, in whatever life if it is a static one."""
    return op.instance or op.member
