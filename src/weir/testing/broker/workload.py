"""What all clients of simulated brokers have: settings, names, and what they know of each other."""

from random import Random

from weir.client.access import ClientSettings
from weir.model.errors import InvariantError, WeirError
from weir.model.topics import TopicName
from weir.testing.broker.cluster import BrokerCluster
from weir.testing.operations import Pending
from weir.testing.storage.workload import Shared

CLIENT = ClientSettings(connect_timeout_s=1.0, request_timeout_s=2.0, keep_alive_s=1.0)


class BrokerShared(Shared):
    """What the clients of one run know of each other."""

    def __init__(self, cluster: BrokerCluster) -> None:
        super().__init__(cluster.history, cluster.broker_plan.storage)
        self.cluster = cluster
        self.story = cluster.story
        self.broker_plan = cluster.broker_plan
        #: The last moment, in virtual time, at which something may come due.
        self.last_due_s = 0.0

    def some_url(self, rng: Random) -> str:
        return self.cluster.url(rng.choice(self.cluster.broker_names))

    @property
    def now(self) -> float:
        return self.cluster.world.now


def full_name(topic: str) -> str:
    return str(TopicName.parse(topic))


def fail(pending: Pending, failure: WeirError) -> None:
    """Record an error that the client was told; a bug goes up instead."""
    pending.failed(failure)
    if isinstance(failure, InvariantError):
        raise failure
