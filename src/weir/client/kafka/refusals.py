"""What a broker's error code means here: an error of the one tree, and whether it may go away by itself."""

from weir.model import errors

#: The codes of the protocol that this client may meet. All others are a BrokerError that shows the number.
_BY_CODE: dict[int, tuple[type[errors.WeirError], str]] = {
    1: (errors.OffsetTrimmedError, "the offset is not in the topic"),
    2: (errors.ChecksumError, "the broker says that the records are damaged"),
    3: (errors.TopicNotFoundError, "there is no such topic or partition"),
    5: (errors.NotOwnerError, "the partition has no leader for now"),
    6: (errors.NotOwnerError, "another broker leads the partition"),
    7: (errors.NetworkError, "the broker could not do it in time"),
    10: (errors.MessageTooLargeError, "the records are larger than the broker allows"),
    13: (errors.NetworkError, "the broker lost a connection"),
    14: (errors.NotOwnerError, "the coordinator is loading its state"),
    15: (errors.NotOwnerError, "there is no coordinator for now"),
    16: (errors.NotOwnerError, "another broker is the coordinator"),
    17: (errors.InvalidNameError, "the topic's name is not allowed"),
    22: (errors.IllegalGenerationError, "the group has consumers of its own"),
    25: (errors.UnknownMemberError, "the group has consumers of its own"),
    29: (errors.NotAuthorisedError, "this role may not use the topic"),
    30: (errors.NotAuthorisedError, "this role may not use the group"),
    31: (errors.NotAuthorisedError, "this role may not do that"),
    35: (errors.UnknownVersionError, "the broker does not speak this version"),
    45: (errors.OutOfOrderSequenceError, "a batch does not follow the producer's last one"),
    47: (errors.StaleEpochError, "a newer producer has taken over"),
    48: (errors.TransactionStateError, "the transaction is not in a state for this"),
    49: (errors.StaleEpochError, "the producer id is another one's"),
    51: (errors.TransactionBusyError, "the last transaction is still being ended"),
    53: (errors.NotAuthorisedError, "this role may not use the transactional id"),
    56: (errors.NetworkError, "the broker's storage did not answer"),
    58: (errors.NotAuthenticatedError, "the broker does not take the credentials"),
    59: (errors.UnknownProducerError, "the broker does not know the producer"),
    74: (errors.NotOwnerError, "another broker leads the partition"),
    75: (errors.NotOwnerError, "another broker leads the partition"),
    87: (errors.InvalidRecordError, "the broker refuses the records"),
    88: (errors.UnstablePositionError, "a transaction that moves the position is open"),
    89: (errors.ProducersHeldError, "the broker asks to wait"),
    90: (errors.StaleEpochError, "a newer producer has taken over"),
    100: (errors.TopicNotFoundError, "the topic was deleted, or deleted and created again"),
    120: (errors.NotInTransactionError, "the partition is not part of the transaction"),
}

#: What is worth another try.
RETRIABLE = (
    errors.NetworkError,
    errors.NotOwnerError,
    errors.TransactionBusyError,
    errors.UnstablePositionError,
    errors.ProducersHeldError,
)


def check(code: int, about: str, message: str | None = None) -> None:
    """Raise the error that the code stands for, if it is one."""
    if code != 0:
        raise error_of(code, about, message)


def error_of(code: int, about: str, message: str | None = None) -> errors.WeirError:
    kind, text = _BY_CODE.get(code, (errors.BrokerError, f"the broker refused with code {code}"))
    hint = "give a token" if kind is errors.NotAuthenticatedError else None
    return kind(f"{about}: {message or text}", hint=hint)
