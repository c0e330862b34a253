"""The scenarios that there are."""

from weir.testing.broker.scenario import BROKER
from weir.testing.half.scenario import HALF
from weir.testing.kafka.scenario import KAFKA
from weir.testing.multibroker.scenario import MULTIBROKER
from weir.testing.queues.scenario import QUEUES
from weir.testing.retries.scenario import RETRIES
from weir.testing.rocketmq.scenario import ROCKETMQ
from weir.testing.storage.scenario import CLUSTER

SCENARIOS = {
    scenario.name: scenario for scenario in (CLUSTER, BROKER, KAFKA, MULTIBROKER, QUEUES, HALF, RETRIES, ROCKETMQ)
}
