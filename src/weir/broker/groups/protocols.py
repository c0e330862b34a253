"""Which way of dividing a group's work all of its members know."""

from collections.abc import Collection, Sequence

from weir.broker.api import JoinRequest
from weir.broker.groups.member import Member
from weir.model.errors import InconsistentGroupProtocolError


def common(members: Collection[Member]) -> list[str]:
    """Protocols that every member knows, in the order of the first."""
    first = next(iter(members), None)
    if first is None:
        return []
    return [name for name in first.protocols if all(name in member.protocols for member in members)]


def chosen(members: Collection[Member]) -> str:
    """Each votes for the one that it likes best of those that all know; of equals, the first voted for wins."""
    possible = common(members)
    votes: dict[str, int] = {}
    for member in members:
        favourite = next(name for name in member.protocols if name in possible)
        votes[favourite] = votes.get(favourite, 0) + 1
    return max(votes, key=lambda name: votes[name])


def check_fits(request: JoinRequest, protocol_type: str, members: Sequence[Member]) -> None:
    """InconsistentGroupProtocolError unless there is a way that all members and this request know. One that is a
    member already counts with what it said before: as with Kafka, it leaves first to change its mind."""
    if not request.protocol_type or not request.protocols:
        raise InconsistentGroupProtocolError("a member names a protocol type, and at least one protocol")
    if not members:
        return
    if request.protocol_type != protocol_type:
        raise InconsistentGroupProtocolError(f"the group is of type {protocol_type!r}")
    known = common(members)
    if not any(name in known for name in request.protocols):
        raise InconsistentGroupProtocolError(f"the members know {', '.join(known)[:200]}")
