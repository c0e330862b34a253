"""Topics that Weir and its clients keep for themselves: state, positions, retries. The lake of a namespace leaves
them out unless they are named."""

from weir.model.functions import PREFIX as _FUNCTION
from weir.model.replays import is_selection
from weir.model.topics import TopicName

#: Begin the names of topics of functions and connectors, and of the retries of RocketMQ's groups.
_PREFIXES = (_FUNCTION, "connect-", "%RETRY%")
#: Ends the names of topics in which Pulsar's clients retry.
_RETRY = "-RETRY"


def is_internal(topic: TopicName) -> bool:
    """Whether the topic is no user's, by its name. Log topics of functions have any name, and are others."""
    return topic.local.startswith(_PREFIXES) or topic.local.endswith(_RETRY) or is_selection(topic)
