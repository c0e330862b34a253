"""The scenarios that there are."""

from weir.testing.broker_scenario import BROKER
from weir.testing.cluster_scenario import CLUSTER
from weir.testing.kafka_scenario import KAFKA

SCENARIOS = {scenario.name: scenario for scenario in (CLUSTER, BROKER, KAFKA)}
