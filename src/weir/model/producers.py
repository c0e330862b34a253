"""What is remembered of idempotent producers."""

from weir.model.value import value


@value
class Stored:
    """A batch in the log: its first and last sequence number, where it begins, and its checksum if it is known."""

    epoch: int
    first: int
    last: int
    offset: int
    checksum: int = 0
