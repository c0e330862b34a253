"""A member of a consumer group, as its group knows it.

Who is in a consumer group: members by id and by instance, ids that were given to those who will come, and
counts of what the members know, say and read. Nothing here that concerns one member depends on the number of the
others.

One consumer group: who is in, which generation it is, who has which share.

Everything here is decided at once, in plain functions; what a member must wait for is a future. `_tick` is called
when the next deadline may have passed. What one member asks costs the same however many others there are; what
concerns all of them happens once per generation, and their answers are given in turns of the loop.

What is written down of consumer groups: enough to go on without dividing the work anew. Groups live in the
shard of their name; large ones are encoded in turns of the loop.

A timer that is set for the earliest of many moments, and set anew only when an earlier one comes; and deadlines
of many objects, of which the earliest is known without a scan.

How long a consumer group waits for its members to join.

Which way of dividing a group's work all of its members know.
"""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from weir.broker.api.groups import Joined, JoinRequest, MemberInfo, Synced
from weir.broker.api.stats import ConsumerStats, Flow
from weir.model.errors import (
    MemberFencedError,
    NotOwnerError,
    UnknownMemberError,
    WeirError,
)
from weir.model.topics import TopicName
from weir.runtime.adjustable_clock import unmoved
from weir.runtime.interfaces import Clock, Timer
from weir.wire.snapshots.groups import MemberRecord, encode_member

K = TypeVar("K", bound=Hashable)

NEVER = float("inf")
#: A timer that is later by more than this was held up by its process, and so was the reading of requests.
_LATE_S = 0.5
#: For so long at most an alarm waits for requests that came while the process stood still.
_GRACE_S = 5.0
#: A heap has so many invalid entries before they are worth removing.
_SPARE_ENTRIES = 64


class Alarm:
    """`ring` is called once the moment has come; it looks for itself what is due, and sets the next. Moments that
    are put off (a heartbeat came) cost nothing: the alarm rings, and nothing is due. After the process stood still
    it rings later, when the heartbeats that came meanwhile have been read. A clock that was moved forward is no
    standstill."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        #: Whether the process stood still is asked of this one.
        self._unmoved = unmoved(clock)
        self._ring = ring
        self._timer: Timer | None = None
        self._at = NEVER
        #: The same moment, if nobody moves the clock until then, by the clock that nobody moves.
        self._expected = NEVER
        #: It does not ring before.
        self._not_before = -NEVER

    def at(self, when: float) -> None:
        """Ring at this moment of the monotonic clock at the latest."""
        when = max(when, self._not_before)
        if when >= self._at:
            return
        self.stop()
        self._at = when
        delay = max(0.0, when - self._clock.monotonic())
        self._expected = self._unmoved.monotonic() + delay
        self._timer = self._clock.call_later(delay, self._rung)

    def _rung(self) -> None:
        due, late_s = self._at, self._unmoved.monotonic() - self._expected
        self._timer, self._at = None, NEVER
        if late_s > _LATE_S and due > self._not_before:
            self._not_before = self._clock.monotonic() + min(late_s, _GRACE_S)
            self.at(self._not_before)
        else:
            self._ring()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, NEVER


class Deadlines(Generic[K]):
    """A deadline for each of many keys. All operations take O(log n), amortized: a deadline that is extended
    leaves its heap entry where it is, and the entry moves when it becomes the first."""

    def __init__(self) -> None:
        self._deadlines: dict[K, float] = {}
        #: The time of the one valid heap entry of each key; it is not after the deadline.
        self._queued: dict[K, float] = {}
        #: Time, number, key: the numbers keep the order, and spare the comparison of keys.
        self._heap: list[tuple[float, int, K]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: K, deadline: float) -> None:
        """Replace the deadline of the key."""
        self._deadlines[key] = deadline
        if deadline < self._queued.get(key, NEVER):
            self._push(key, deadline)

    def remove(self, key: K) -> bool:
        """Remove the key; answers whether it had a deadline."""
        self._queued.pop(key, None)
        return self._deadlines.pop(key, None) is not None

    def clear(self) -> None:
        self._deadlines.clear()
        self._queued.clear()
        self._heap.clear()

    def first(self) -> float:
        """A time that is not after any deadline; NEVER without keys."""
        return self._heap[0][0] if self._heap else NEVER

    def pop_due(self, now: float) -> list[K]:
        """Remove the keys whose deadline has come, and answer them in the order of their deadlines."""
        due: list[K] = []
        heap = self._heap
        while heap:
            when, _, key = heap[0]
            if self._queued.get(key) != when:  # removed, or replaced by an earlier entry
                heappop(heap)
                continue
            deadline = self._deadlines[key]
            if deadline > when:
                heappop(heap)
                self._push(key, deadline)
                continue
            if when > now:
                break
            heappop(heap)
            self.remove(key)
            due.append(key)
        return due

    def _push(self, key: K, deadline: float) -> None:
        self._queued[key] = deadline
        self._number += 1
        heappush(self._heap, (deadline, self._number, key))
        if len(self._heap) > 2 * len(self._queued) + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if self._queued.get(entry[2]) == entry[0]]
            heapify(self._heap)


log = logging.getLogger(__name__)

T = TypeVar("T")

#: Properties of a member where stats show it as a consumer.
GENERATION = "weir.generation"
_CLIENT_ID = "weir.client_id"
_INSTANCE_ID = "weir.instance_id"
#: Members of one group that are answered in one turn of the loop: each answer wakes a request, which goes on then.
_ANSWERS_PER_TURN = 64


@dataclass(slots=True, eq=False)
class Member:
    """Changed by its group alone. `join` and `sync`: what it waits for, if it does."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_s: float
    rebalance_s: float
    protocols: Mapping[str, bytes]
    #: When it came, in milliseconds since 1970.
    joined_ms: int
    #: When it is given up unless it says something, by the monotonic clock.
    deadline: float = 0.0
    #: Whether it has not been in a generation yet.
    new: bool = True
    assignment: bytes = b""
    parts: tuple[TopicName, ...] = ()
    join: "asyncio.Future[Joined] | None" = None
    sync: "asyncio.Future[Synced] | None" = None
    #: Whether it has yet to ask for its share of this generation.
    owes_sync: bool = False
    may_skip: bool = False
    #: What it said of itself, in bytes.
    size: int = 0
    #: Whose it is, and what it says that it reads, as `JoinRequest` has it.
    role: str = ""
    topics: tuple[TopicName, ...] = ()
    #: The topics of `parts` and `topics`, as the roster has counted them.
    read: tuple[TopicName, ...] = ()
    #: What is written down of it, as of the last time.
    stored: "StoredMember | None" = None
    #: Its id in what was last written down of its group; "" if it is not in it.
    stored_id: str = ""

    @property
    def waits(self) -> bool:
        """Whether it is the group that keeps it waiting, and not the other way round."""
        return self.join is not None or self.sync is not None

    def silent(self, now: float) -> bool:
        """Whether it is to be given up. One that is not new and waits may wait; a new one may have gone without
        ever having been in a generation, so that it says nothing means something."""
        return now >= self.deadline and (self.new or not self.waits)

    def update(self, request: JoinRequest) -> None:
        self.protocols = dict(request.protocols)
        self.session_s, self.rebalance_s = request.session_s, request.rebalance_s
        self.client_id, self.client_host = request.client_id, request.client_host
        self.may_skip = request.may_skip
        self.size = request.size
        self.role, self.topics = request.role, tuple(request.topics)

    def says_the_same(self, protocols: Mapping[str, bytes]) -> bool:
        return list(self.protocols.items()) == list(protocols.items())

    def await_join(self, replies: "Replies", over: WeirError) -> "asyncio.Future[Joined]":
        """It joins; an earlier call of its own that still waits is ended with `over`."""
        self.end_join(replies, over)
        self.join = asyncio.get_running_loop().create_future()
        return self.join

    def await_sync(self, replies: "Replies", over: WeirError) -> "asyncio.Future[Synced]":
        self.end_sync(replies, over)
        self.owes_sync = False
        self.sync = asyncio.get_running_loop().create_future()
        return self.sync

    def end_join(self, replies: "Replies", result: Joined | WeirError) -> None:
        waiter, self.join = self.join, None
        replies.give(waiter, result)

    def end_sync(self, replies: "Replies", result: Synced | WeirError) -> None:
        waiter, self.sync = self.sync, None
        replies.give(waiter, result)

    def end(self, replies: "Replies", why: WeirError) -> None:
        self.end_join(replies, why)
        self.end_sync(replies, why)

    def info(self, protocol: str) -> MemberInfo:
        return MemberInfo(
            self.id,
            self.instance_id,
            self.client_id,
            self.client_host,
            bytes(self.protocols.get(protocol, b"")),
            self.assignment,
            self.parts,
            self.role,
        )

    def stats(self, generation: int) -> ConsumerStats:
        properties = {_CLIENT_ID: self.client_id, GENERATION: str(generation)}
        if self.instance_id is not None:
            properties[_INSTANCE_ID] = self.instance_id
        return ConsumerStats(
            name=self.id,
            address=self.client_host,
            flow=Flow(),
            unacked=0,
            credit=0,
            redelivered=0,
            priority=0,
            active=True,
            blocked=False,
            connected_ms=self.joined_ms,
            properties=properties,
        )


class StoredMember:
    """What is written down of a member, encoded at most once while the member does not change."""

    __slots__ = ("data", "record")

    def __init__(self, member: Member) -> None:
        self.record = MemberRecord(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.session_s,
            member.rebalance_s,
            member.joined_ms,
            member.protocols,
            member.assignment,
            member.parts,
            member.role,
        )
        self.data: bytes | None = None

    @classmethod
    def of(cls, member: Member) -> "StoredMember":
        if member.stored is None or not member.stored._is(member):
            member.stored = cls(member)
        return member.stored

    def _is(self, member: Member) -> bool:
        """Whether the member is as it was: values that change are replaced, so that identity tells."""
        record = self.record
        return (
            record.id is member.id
            and record.protocols is member.protocols
            and record.assignment is member.assignment
            and record.parts is member.parts
            and record.client_id == member.client_id
            and record.client_host == member.client_host
            and record.session_s == member.session_s
            and record.rebalance_s == member.rebalance_s
            and record.role == member.role
        )

    @property
    def size(self) -> int:
        """Bytes that encoding it has yet to read, about."""
        return 0 if self.data is not None else len(self.record.assignment) + _sizes(self.record.protocols)

    def encode(self) -> bytes:
        if self.data is None:
            self.data = encode_member(self.record)
        return self.data


def _sizes(protocols: Mapping[str, bytes]) -> int:
    return sum(len(name) + len(data) for name, data in protocols.items())


class Replies:
    """Answers the members of a group that wait: the first at once, many in turns of the loop, in their order."""

    def __init__(self) -> None:
        self._queue: deque[tuple[asyncio.Future[Any], Any]] = deque()
        #: Answers of this turn.
        self._given = 0

    def give(self, waiter: "asyncio.Future[T] | None", result: T | WeirError) -> None:
        if waiter is None or waiter.done():
            return
        if self._queue or self._given >= _ANSWERS_PER_TURN:
            self._queue.append((waiter, result))
            return
        if not self._given:
            waiter.get_loop().call_soon(self._next_turn)
        self._given += 1
        _end(waiter, result)

    def _next_turn(self) -> None:
        self._given = 0
        while self._queue and self._given < _ANSWERS_PER_TURN:
            waiter, result = self._queue.popleft()
            if not self._given:
                waiter.get_loop().call_soon(self._next_turn)
            self._given += 1
            _end(waiter, result)


def _end(waiter: "asyncio.Future[T]", result: T | WeirError) -> None:
    """The one that waited may have gone."""
    if waiter.done():
        return
    if isinstance(result, WeirError):
        waiter.set_exception(result)
        waiter.exception()  # nobody may be there to see it
    else:
        waiter.set_result(result)


def answered(value: T) -> "asyncio.Future[T]":
    """A future that is done."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


def failure_of(stored: "asyncio.Future[WeirError | None]") -> WeirError | None:
    """What went wrong with writing something down."""
    return NotOwnerError("the coordinator is going down") if stored.cancelled() else stored.result()


class Roster:
    """In the order in which they came. The leader is a member, if there are any."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._by_id: dict[str, Member] = {}
        self._order: OrderedDict[Member, None] = OrderedDict()
        self._instances: dict[str, str] = {}
        self.leader = ""
        #: Ids that new members were given to come again with, and until when they may.
        self.given: Deadlines[str] = Deadlines()
        #: When members are given up. Those that the group keeps waiting may be missing.
        self.deadlines: Deadlines[Member] = Deadlines()
        #: What all members said of themselves, in bytes.
        self.said_bytes = 0
        #: How many members know each protocol, and have each role.
        self._knowing: Counter[str] = Counter()
        self._roles: Counter[str] = Counter()
        #: How many members have each topic, or say that they read it.
        self._read: Counter[TopicName] = Counter()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._order))

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        return self._by_id.get(member_id)

    def static(self, instance_id: str | None) -> Member | None:
        """The static member of this name."""
        return None if instance_id is None else self._by_id.get(self._instances.get(instance_id, ""))

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """UnknownMemberError; MemberFencedError if the instance is another member by now."""
        if instance_id is not None:
            current = self._instances.get(instance_id)
            if current is None:
                raise UnknownMemberError(f"group {self._group!r} has no static member {instance_id[:80]!r}")
            if current != member_id:
                raise MemberFencedError(f"the static member {instance_id[:80]!r} is another one now")
        member = self._by_id.get(member_id)
        if member is None:
            raise UnknownMemberError(f"group {self._group!r} has no member {member_id[:80]!r}")
        return member

    # --- what all of them have in common -------------------------------------------------------------------

    @property
    def roles(self) -> frozenset[str]:
        return frozenset(self._roles)

    @property
    def topics(self) -> Collection[TopicName]:
        """Topics of which members were given partitions, or say that they read them."""
        return self._read.keys()

    def all_know(self, protocol: str) -> bool:
        return self._knowing[protocol] == len(self._by_id)

    def common(self) -> list[str]:
        """Protocols that every member knows, in the order of the first."""
        first = next(iter(self._order), None)
        return [] if first is None else [name for name in first.protocols if self.all_know(name)]

    # --- changes -------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        self._by_id[member.id] = member
        self._order[member] = None
        self._count(member)
        if member.instance_id is not None:
            self._instances[member.instance_id] = member.id
        self.leader = self.leader or member.id

    def update(self, member: Member, request: JoinRequest) -> None:
        """The member says something else of itself."""
        self._discount(member)
        member.update(request)
        self._count(member)

    def show(self, member: Member, parts: Iterable[TopicName], topics: Iterable[TopicName]) -> None:
        """The member has these partitions, and says that it reads these topics."""
        self._discount(member)
        member.parts, member.topics = tuple(parts), tuple(topics)
        self._count(member)

    def rename(self, member: Member, member_id: str) -> None:
        """A static member goes on under another id, in its old place."""
        if member.id == self.leader:
            self.leader = member_id
        del self._by_id[member.id]
        member.id = member_id
        self._by_id[member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member_id

    def remove(self, member: Member) -> None:
        del self._by_id[member.id]
        del self._order[member]
        self._discount(member)
        self.deadlines.remove(member)
        if member.instance_id is not None and self._instances.get(member.instance_id) == member.id:
            del self._instances[member.instance_id]
        if member.id == self.leader:
            first = next(iter(self._order), None)
            self.leader = "" if first is None else first.id

    def clear(self, members: Sequence[Member] = (), leader: str = "") -> None:
        """These are in, and nobody else."""
        self._by_id = {member.id: member for member in members}
        self._order = OrderedDict.fromkeys(members)
        self._instances = {m.instance_id: m.id for m in members if m.instance_id is not None}
        self.leader = leader
        self.given.clear()
        self.deadlines.clear()
        self.said_bytes = 0
        for counted in (self._knowing, self._roles, self._read):
            counted.clear()
        for member in members:
            self._count(member)

    # --- counting ------------------------------------------------------------------------------------------

    def _count(self, member: Member) -> None:
        self.said_bytes += member.size
        self._knowing.update(member.protocols.keys())
        self._roles[member.role] += 1
        member.read = _bases((*member.parts, *member.topics))
        self._read.update(member.read)

    def _discount(self, member: Member) -> None:
        self.said_bytes -= member.size
        _subtract(self._knowing, member.protocols)
        _subtract(self._roles, (member.role,))
        _subtract(self._read, member.read)


def _subtract(counts: Counter[T], keys: Iterable[T]) -> None:
    """Keys that nobody has any more are forgotten."""
    for key in keys:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


def _bases(parts: Iterable[TopicName]) -> tuple[TopicName, ...]:
    """The topics that these are partitions of; partitions of one topic usually follow each other."""
    found: dict[TopicName, None] = {}
    last: tuple[object, ...] = ()
    for part in parts:
        topic = (part.local, part.namespace, part.domain)
        if topic != last:
            found[part.base] = None
            last = topic
    return tuple(found)
