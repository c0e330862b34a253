"""The broker: consumer groups."""

from weir.model.errors.base import BrokerError


class UnknownGroupError(BrokerError):
    """There is no such consumer group."""


class UnknownMemberError(BrokerError):
    """The group does not know this member."""


class MemberFencedError(BrokerError):
    """Another member has this static id now."""


class MemberIdRequiredError(BrokerError):
    """A new member shall join again with the id that it is given here."""

    def __init__(self, what: str, *, hint: str | None = None, member_id: str = "") -> None:
        super().__init__(what, hint=hint)
        self.member_id = member_id


class IllegalGenerationError(BrokerError):
    """The group has moved on to another generation."""


class RebalanceInProgressError(BrokerError):
    """The group is being divided anew."""

    hint = "join again"


class InconsistentGroupProtocolError(BrokerError):
    """The member has no way of dividing work in common with the others."""


class GroupNotEmptyError(BrokerError):
    """The group has members."""


class InvalidGroupError(BrokerError):
    """A name that cannot be a consumer group's."""


class SessionTimeoutError(BrokerError):
    """A member may not be silent for as long, or as short, as it asked for."""


class GroupFullError(BrokerError):
    """The group has as many members as it may have."""


class GroupSubscribedError(BrokerError):
    """The group's members read this topic."""

    hint = "stop them first"


class CommitTooLargeError(BrokerError):
    """What a consumer group wants kept beside a position is too long."""


class UnstablePositionError(BrokerError):
    """A transaction that moves the position is not decided yet."""

    hint = "try again"
