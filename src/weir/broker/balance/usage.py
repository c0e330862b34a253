"""Load as one number: the share of a broker that is used, and a bundle's part of it."""

from weir.broker.balance.limits import BalanceLimits
from weir.model.load import BrokerLoad, BundleLoad

#: So many bytes cost a broker about as much as one more message (docs/internals/benchmarks.md: CPU per message
# and per MB).
BYTES_PER_MESSAGE = 4096.0


def broker_usage(load: BrokerLoad, limits: BalanceLimits) -> float:
    """What ends first: CPU, or what the operator said of messages and bytes. Memory is no part of it: a process
    does not give it back with its bundles, so relieving it again and again would not lower it."""
    usage = load.cpu
    if limits.broker_messages_per_s:
        usage = max(usage, load.messages / limits.broker_messages_per_s)
    if limits.broker_bytes_per_s:
        usage = max(usage, load.bytes / limits.broker_bytes_per_s)
    return usage


def cost(load: BrokerLoad | BundleLoad) -> float:
    """Work, in messages per second."""
    return load.messages_in + load.messages_out + (load.bytes_in + load.bytes_out) * (1 / BYTES_PER_MESSAGE)


def traffic_cost(messages_in: float, bytes_in: float, messages_out: float, bytes_out: float) -> float:
    """`cost`, of rates that are no report yet."""
    return messages_in + messages_out + (bytes_in + bytes_out) / BYTES_PER_MESSAGE


def usage_per_cost(load: BrokerLoad, usage: float) -> float:
    """How much of the broker one unit of work takes, as measured there; 0 for one that does no work."""
    total = cost(load)
    return usage / total if total > 0 else 0.0
