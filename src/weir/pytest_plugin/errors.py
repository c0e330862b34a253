"""What can go wrong between a test and its broker."""


class BrokerFailedError(RuntimeError):
    """The broker could not be started, is not there, or refused what it was asked."""


class NotYetError(AssertionError):
    """What a test waited for did not come; the text says what there is instead."""
