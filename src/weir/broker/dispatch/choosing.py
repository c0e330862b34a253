"""Which dispatcher serves a subscription, by its type and by how messages are to be dealt."""

from weir.broker.api import SubscriptionType
from weir.broker.dispatch.dispatcher import Dispatcher, DispatchParts
from weir.broker.dispatch.key_ranges import KeysOf
from weir.broker.dispatch.key_shared import KeyShared
from weir.broker.dispatch.shared import Shared
from weir.broker.dispatch.single import SingleActive


def dispatcher_of(kind: SubscriptionType, parts: DispatchParts, keys_of: KeysOf) -> Dispatcher:
    """One that deals whole batches."""
    match kind:
        case SubscriptionType.SHARED:
            return Shared(parts)
        case SubscriptionType.KEY_SHARED:
            return KeyShared(parts, keys_of)
        case _:
            return SingleActive(parts, failover=kind is SubscriptionType.FAILOVER)
