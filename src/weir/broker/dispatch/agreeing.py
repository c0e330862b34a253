"""What a consumer names for its subscription: filter, order and retry policy, the same for all of its consumers.

Whoever names one first decides. A consumer's own properties count where it says nothing of the subscription's: not
every client can.
"""

import logging
from collections.abc import Mapping

from weir.broker.api import SubscribeRequest
from weir.broker.filters.compiled import CompiledFilter, compiled
from weir.model.errors import FilterError, SubscriptionBusyError
from weir.model.fifo import FIFO_PROPERTY, is_fifo
from weir.model.filters import MessageFilter, filter_in, with_filter
from weir.model.queues import QUEUE_SUBSCRIPTION
from weir.model.retry import RetryPolicy, retry_of, with_retry

log = logging.getLogger(__name__)


def agreed(
    request: SubscribeRequest, properties: Mapping[str, str], has: CompiledFilter | None, *, busy: bool
) -> dict[str, str] | None:
    """The properties of the subscription with what the consumer names; None if it names nothing new. `has`: its
    filter now; `busy`: it has consumers, for whom nothing changes. SubscriptionBusyError, FilterError."""
    found = dict(properties)
    name = request.subscription
    named = wanted_filter(request)
    if named is not None and name != QUEUE_SUBSCRIPTION and compiled(named) is not has:  # a queue's have their own
        _check(
            busy,
            f"subscription {name!r} has consumers with another filter: {'none' if has is None else has}",
            "name the same filter, or none; or change the subscription's properties, for all of them",
        )
        found = with_filter(found, named)
    order = wanted_order(request)
    if order is not None and order != is_fifo(found):
        _check(
            busy,
            f"subscription {name!r} has consumers that get messages in another order",
            f"say the same of {FIFO_PROPERTY}, or nothing",
        )
        found[FIFO_PROPERTY] = str(order).lower()
    retry = wanted_retry(request)
    if retry is not None and retry != retry_of(found):
        _check(
            busy,
            f"subscription {name!r} has consumers that retry in another way",
            "name the same policy, or none; or change the subscription's properties, for all of them",
        )
        found = with_retry(found, retry)
    return None if found == properties else found


def _check(busy: bool, what: str, hint: str) -> None:
    if busy:
        raise SubscriptionBusyError(what, hint=hint)


def wanted_filter(request: SubscribeRequest) -> MessageFilter | None:
    """The filter that a consumer names; None if it names none."""
    if request.filter is not None:
        return request.filter
    named = filter_in(request.subscription_properties)
    return filter_in(request.properties) if named is None else named


def wanted_order(request: SubscribeRequest) -> bool | None:
    """Whether a consumer wants order by message group; None if it says nothing of it."""
    for properties in (request.subscription_properties, request.properties):
        if FIFO_PROPERTY in properties:
            return is_fifo(properties)
    return None


def wanted_retry(request: SubscribeRequest) -> RetryPolicy | None:
    """The retry policy that a consumer names; None if it names none. NotAllowedError for what cannot be."""
    named = retry_of(request.subscription_properties)
    return retry_of(request.properties) if named is None else named


def stored_filter(name: str, properties: Mapping[str, str]) -> CompiledFilter | None:
    """Of a subscription as it was stored; one that a newer Weir took leaves nothing out."""
    try:
        return compiled(filter_in(properties))
    except FilterError as wrong:
        log.error("subscription %r gets all messages: %s", name, wrong)
        return None
