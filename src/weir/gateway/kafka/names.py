"""Kafka's topic names and Weir's, both ways.

`orders` is `persistent://public/default/orders`. A topic of another namespace is `tenant..namespace..topic`, in
letters that Kafka allows; `tenant/namespace/topic` is understood, too, but never said. What cannot be named in
these letters does not exist for Kafka's clients.
"""

import re
from functools import lru_cache

from weir.model.errors import InvalidNameError
from weir.model.topics import DEFAULT_NAMESPACE, Domain, NamespaceName, TopicName

_SEPARATOR = ".."
#: Clients name all of their topics in each request for metadata, again and again.
_KNOWN_NAMES = 16_384
_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


@lru_cache(_KNOWN_NAMES)
def topic_of(kafka_name: str) -> TopicName:
    """The topic as a whole that a Kafka client means; InvalidNameError if it cannot mean one."""
    if "/" in kafka_name:
        parts = kafka_name.split("/")
        if len(parts) != 3:
            raise _illegal(kafka_name)
    else:
        if not _LEGAL.fullmatch(kafka_name) or kafka_name in (".", ".."):
            raise _illegal(kafka_name)
        parts = kafka_name.split(_SEPARATOR)
    if len(parts) == 3 and all(parts):
        namespace, local = NamespaceName.parse("/".join(parts[:2])), parts[2]
    else:
        namespace, local = DEFAULT_NAMESPACE, kafka_name
    name = TopicName.parse(f"{Domain.PERSISTENT.value}://{namespace}/{local}")
    if name.partition is not None:
        raise InvalidNameError(f"{kafka_name[:80]!r} names a partition of another topic")
    return name


def kafka_name(base: TopicName) -> str | None:
    """How Kafka's clients call a topic; None if they cannot."""
    name = base.local
    if base.namespace != DEFAULT_NAMESPACE or len(name.split(_SEPARATOR)) == 3:
        name = _SEPARATOR.join((base.namespace.tenant, base.namespace.name, base.local))
    try:
        return name if _LEGAL.fullmatch(name) and topic_of(name) == base else None
    except InvalidNameError:
        return None


def _illegal(name: str) -> InvalidNameError:
    return InvalidNameError(
        f"{name[:80]!r} is not a topic name",
        hint="use up to 249 letters, digits and . _ -, or tenant..namespace..topic",
    )
