"""Order by message group, as a property of a subscription."""

from collections.abc import Mapping

from weir.model.retry import FixedDelays, RetryPolicy

#: `true`: of each message group one message is out at a time, in the order of the log, to whichever consumer.
FIFO_PROPERTY = "weir.fifo"
#: A message that fails holds up its group, so it does not do so for ever: what holds where nothing else is said.
FIFO_RETRY = RetryPolicy(FixedDelays((1000,)), 16)


def is_fifo(properties: Mapping[str, str]) -> bool:
    return properties.get(FIFO_PROPERTY, "").lower() == "true"
