"""How many bytes were read for clients that have not read them yet: bounded for all connections together."""

_FAR_OVER = 2


class InHand:
    """All connections together. Over the limit, a fetch is still answered with one batch: nobody is starved. Far
    over it, fetches wait for as long as they may: others read meanwhile, or are ended because they do not."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    @property
    def room(self) -> int:
        return max(0, self._limit - self.taken)

    @property
    def crowded(self) -> bool:
        return self.taken >= _FAR_OVER * self._limit


class Share:
    """One connection's part of it."""

    def __init__(self, whole: InHand) -> None:
        self._whole = whole
        self._taken = 0

    @property
    def room(self) -> int:
        return self._whole.room

    @property
    def crowded(self) -> bool:
        return self._whole.crowded

    def take(self, size: int) -> None:
        self._taken += size
        self._whole.taken += size

    def free(self) -> None:
        """The client has read, or will never read, what was taken for it."""
        self._whole.taken -= self._taken
        self._taken = 0
