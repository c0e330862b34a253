"""How long a consumer group waits for its members to join."""

from weir.broker.upkeep.alarm import NEVER


class Gathering:
    """Members are awaited until `by`. One that was empty assembles first: it waits a little for others, and a
    little more when some came meanwhile, but not for longer than a rebalance may take."""

    def __init__(self) -> None:
        self.by = NEVER
        self.assembling = False
        self._delay_s = 0.0
        self._left_s = 0.0
        self._came = False

    def begin(self, now: float, wait_s: float, *, delay_s: float | None = None) -> None:
        """Wait for all members, for so long at most. `delay_s`: the group was empty, and shall assemble."""
        self.assembling = delay_s is not None and min(delay_s, wait_s) > 0
        if delay_s is None:
            self.by = now + wait_s
            return
        self._delay_s, self._left_s = delay_s, wait_s
        self._wait_a_little(now)

    def _wait_a_little(self, now: float) -> None:
        little_s = min(self._delay_s, self._left_s)
        self._left_s -= little_s
        self.by = now + little_s
        self._came = False

    def somebody_came(self) -> None:
        self._came = True

    def is_over(self, now: float) -> bool:
        """Whether those who have not come are to be given up."""
        if now < self.by:
            return False
        if self.assembling and self._came and self._left_s > 0:
            self._wait_a_little(now)
            return False
        return True

    def end(self) -> None:
        self.by = NEVER
        self.assembling = False
