"""Transactions: refused, as a Pulsar broker does that has them disabled."""

from typing import NoReturn

from weir.gateway.pulsar.errors import NO_TRANSACTIONS
from weir.gateway.pulsar.registry import at_once
from weir.gateway.pulsar.session import Session
from weir.model.errors import NotAllowedError
from weir.model.topics import TopicName
from weir.wire.pulsar.proto import Message, api

#: The topic whose partitions clients look up first, each served by a transaction coordinator.
COORDINATOR = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")


@at_once(
    api.CommandTcClientConnectRequest,
    api.CommandNewTxn,
    api.CommandAddPartitionToTxn,
    api.CommandAddSubscriptionToTxn,
    api.CommandEndTxn,
    api.CommandEndTxnOnPartition,
    api.CommandEndTxnOnSubscription,
)
def transactions(_session: Session, _command: Message) -> NoReturn:
    raise NotAllowedError(NO_TRANSACTIONS)
