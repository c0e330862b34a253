"""Gateway for Pulsar's binary protocol: `PulsarServer` over any `weir.broker.api.Broker`
(docs/reference/pulsar.md)."""

from weir.gateway.pulsar.gateway import PulsarServer
from weir.gateway.pulsar.settings import PulsarSettings, SessionLimits

__all__ = ["PulsarServer", "PulsarSettings", "SessionLimits"]
