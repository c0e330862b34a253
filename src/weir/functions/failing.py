"""Messages that the function failed at: when they come again, and what they say when they are given up."""

from contextlib import suppress

from weir.functions.protocol import Headers, Item
from weir.model.dead_letters import NAMES, Death
from weir.model.errors import InvalidNameError
from weir.model.functions import Function
from weir.model.retry import RetryPolicy
from weir.model.topics import TopicName
from weir.wire.kafka.records_build import Record

#: Of a message that waits in the retry topic: where it was, and for the how many-th time it comes now.
_TOPIC, _PARTITION, _OFFSET, _ATTEMPT = "weir-fn-topic", "weir-fn-partition", "weir-fn-offset", "weir-fn-attempt"
_AFTER = "weir-deliver-after"
#: Of a message that was delayed when it came: it would be so again.
_DELAYS = (_AFTER, "weir-deliver-at", "weir-delay-id", "weir-cancel")
_OURS = (_TOPIC, _PARTITION, _OFFSET, _ATTEMPT, _AFTER)
ERROR = "weir-dead-error"


def item_of(record: Record, topic: TopicName, partition: int, offset: int, *, waited: bool = False) -> Item:
    """A record as the function gets it; one that `waited` in the retry topic is what it was at first."""
    headers: Headers = [
        (bytes(name).decode(errors="replace"), None if value is None else bytes(value))
        for name, value in record.headers
    ]
    item = Item(
        str(topic),
        partition,
        offset,
        None if record.key is None else bytes(record.key),
        None if record.value is None else bytes(record.value),
        headers,
        record.timestamp,
    )
    if waited:
        with suppress(KeyError, ValueError, InvalidNameError):  # what others put there is nothing but itself
            said = {name: value.decode() for name, value in headers if name in _OURS and value is not None}
            first = str(TopicName.parse(said[_TOPIC])), int(said[_PARTITION]), int(said[_OFFSET])
            item.attempt = int(said[_ATTEMPT])
            item.topic, item.partition, item.offset = first
            item.headers = [(name, value) for name, value in headers if name not in _OURS]
    return item


def again(item: Item, policy: RetryPolicy) -> Record:
    """As it waits in the retry topic, for as long as the policy says."""
    headers = [
        *((name, value) for name, value in item.headers if name not in (*_OURS, *_DELAYS)),
        (_TOPIC, item.topic.encode()),
        (_PARTITION, str(item.partition).encode()),
        (_OFFSET, str(item.offset).encode()),
        (_ATTEMPT, str(item.attempt + 1).encode()),
    ]
    wait_ms = policy.delay_ms(item.attempt)
    if wait_ms:
        headers.append((_AFTER, str(wait_ms).encode()))
    return _record(item, headers)


def dead_letter(item: Item, function: Function, error: str, now_ms: int, *, partitioned: bool) -> Record:
    """As dead letters of the server say it (docs/reference/retries.md), and with the error."""
    topic = TopicName.parse(item.topic)
    death = Death(
        "delivery_limit",
        item.attempt,
        topic.at(item.partition) if partitioned else topic,
        item.offset,
        function.subscription,
        item.timestamp,
        now_ms,
    )
    kept = [(name, value) for name, value in item.headers if name not in (*NAMES, ERROR, *_DELAYS)]
    return _record(item, [*kept, *death.headers(), (ERROR, error[:1_000].encode())])


def dead_letter_topic(item: Item, function: Function, policy: RetryPolicy) -> TopicName:
    return policy.dead_letters_of(TopicName.parse(item.topic), function.subscription)


def _record(item: Item, headers: Headers) -> Record:
    return Record(0, item.timestamp, item.key, item.value, [(name.encode(), value) for name, value in headers])
