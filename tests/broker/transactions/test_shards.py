"""Who may begin to write in a transaction is decided where it can also be ended, or not at all."""

from typing import Any

import pytest

from weir.broker.api.broker import Owner
from weir.broker.coordination.shards import CoordinatorShards
from weir.broker.ports import TransactionGate
from weir.broker.transactions.transaction import TransactionSettings
from weir.broker.transactions.transaction_shards import TransactionShards
from weir.model.batch import Stamp
from weir.model.errors import NotOwnerError
from weir.model.topics import TopicName


class RemoteCoordinators:
    """A broker that knows that another one has the coordinator's shard."""

    async def load(self, name: TopicName, *, create: bool = True) -> Any:
        raise NotOwnerError(f"{name} is another broker's")

    async def holder(self, name: TopicName) -> Owner:
        return Owner(False, {"pulsar": "pulsar://other:6650"})

    async def is_stored(self, name: TopicName) -> bool:
        return True


def test_while_another_broker_is_the_coordinator_no_transaction_begins_here(run: Any) -> None:
    async def scenario(bench: Any) -> None:
        gate, broker = TransactionGate(), RemoteCoordinators()
        shards = TransactionShards(
            bench.runtime.clock,
            CoordinatorShards(broker),
            gate,
            TransactionSettings(),
            takes_part=None,  # type: ignore[arg-type]
            positions=None,  # type: ignore[arg-type]
        )
        shards.start()
        await bench.runtime.clock.sleep(5)  # it had time to find out
        assert gate.admit(Stamp(7, 0, 0), TopicName.parse("t")) is None
        with pytest.raises(NotOwnerError):
            await gate.verify(Stamp(7, 0, 0), TopicName.parse("t"))
        await shards.close()

    run(scenario)
