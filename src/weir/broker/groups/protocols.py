"""Which way of dividing a group's work all of its members know."""

from weir.broker.api import JoinRequest
from weir.broker.groups.roster import Roster
from weir.model.errors import InconsistentGroupProtocolError


def chosen(members: Roster) -> str:
    """Each votes for the one that it likes best of those that all know; of equals, the first voted for wins."""
    votes: dict[str, int] = {}
    for member in members:
        favourite = next(filter(members.all_know, member.protocols))
        votes[favourite] = votes.get(favourite, 0) + 1
    return max(votes, key=lambda name: votes[name])


def check_fits(request: JoinRequest, protocol_type: str, members: Roster) -> None:
    """InconsistentGroupProtocolError unless there is a way that all members and this request know. One that is a
    member already counts with what it said before: as with Kafka, it leaves first to change its mind."""
    if not request.protocol_type or not request.protocols:
        raise InconsistentGroupProtocolError("a member names a protocol type, and at least one protocol")
    if not members:
        return
    if request.protocol_type != protocol_type:
        raise InconsistentGroupProtocolError(f"the group is of type {protocol_type!r}")
    if not any(map(members.all_know, request.protocols)):
        known = ", ".join(members.common())[:200]
        raise InconsistentGroupProtocolError(f"the members know {known}")
