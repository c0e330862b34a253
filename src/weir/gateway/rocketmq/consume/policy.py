"""What holds for a consumer group: its order, how often a message is tried, and how long is waited between."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weir.wire.rocketmq.proto import set_ms

if TYPE_CHECKING:
    from weir.gateway.rocketmq.services import Services

#: RocketMQ's: 17 attempts, and what is waited after each of them that failed.
DEFAULT_ATTEMPTS = 17
DEFAULT_BACKOFF_MS = tuple(
    seconds * 1000 for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    fifo: bool = False
    max_attempts: int = DEFAULT_ATTEMPTS
    #: A list of waits; or, if `multiplier` is not 0, the first wait and the longest one.
    backoff_ms: tuple[int, ...] = DEFAULT_BACKOFF_MS
    multiplier: float = 0.0

    def tell(self, policy: Any) -> None:
        """As clients are told."""
        policy.max_attempts = self.max_attempts
        if self.multiplier:
            exponential = policy.exponential_backoff
            set_ms(exponential.initial, self.backoff_ms[0])
            set_ms(exponential.max, self.backoff_ms[-1])
            exponential.multiplier = self.multiplier
        else:
            for wait_ms in self.backoff_ms:
                set_ms(policy.customized_backoff.next.add(), wait_ms)


def group_policy(services: "Services", resource: Any, group: str) -> GroupPolicy:
    return GroupPolicy()
