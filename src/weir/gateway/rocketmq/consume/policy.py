"""What holds for a consumer group, as its clients are told."""

from typing import TYPE_CHECKING, Any

from weir.gateway.rocketmq.names import namespace_of
from weir.model.consumer_groups import GroupSettings
from weir.model.retry import Backoff
from weir.wire.rocketmq.proto import set_ms

if TYPE_CHECKING:
    from weir.gateway.rocketmq.services import Services


def settings_of(services: "Services", resource: Any, group: str) -> GroupSettings:
    return services.groups.settings(namespace_of(str(resource.resource_namespace)), group)


def tell(settings: GroupSettings, policy: Any) -> None:
    """As a RetryPolicy of RocketMQ."""
    policy.max_attempts = settings.max_attempts
    schedule = settings.schedule
    if isinstance(schedule, Backoff):
        exponential = policy.exponential_backoff
        set_ms(exponential.initial, schedule.first_ms)
        set_ms(exponential.max, schedule.most_ms)
        exponential.multiplier = schedule.factor
    else:
        for wait_ms in schedule.delays_ms or (0,):
            set_ms(policy.customized_backoff.next.add(), wait_ms)
