"""Order by message group, as a property of a subscription."""

from collections.abc import Mapping

#: `true`: of each message group one message is out at a time, in the order of the log, to whichever consumer.
FIFO_PROPERTY = "weir.fifo"


def is_fifo(properties: Mapping[str, str]) -> bool:
    return properties.get(FIFO_PROPERTY, "").lower() == "true"
