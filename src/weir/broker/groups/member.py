"""A member of a consumer group, as its group knows it."""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from weir.broker.api import ConsumerStats, Flow, Joined, JoinRequest, MemberInfo, Synced
from weir.model.errors import NotOwnerError, WeirError
from weir.model.topics import TopicName
from weir.wire.snapshots.groups import MemberRecord, encode_member

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
