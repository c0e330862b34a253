"""Retry of failed messages by the server: when a message comes again, how often, and where it goes then.

As text, a schedule is a list of waits, `1s 10s 1m` (the first failure waits for the first of them, and from the
last on all for the last), or bounds between which the wait grows, `1s..10m`, doubling, or `1s..10m x3`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weir.model.errors import NotAllowedError
from weir.model.topics import Domain, TopicName

#: Properties of a subscription: its schedule, how often a message is delivered at the most, and where goes what
#: was. Each wins over what the topic's policies say.
SCHEDULE = "weir.retry.schedule"
MAX_DELIVERIES = "weir.retry.max-deliveries"
DEAD_LETTER_TOPIC = "weir.retry.dead-letter-topic"

#: What comes before a RocketMQ group's name in the name of its topic of dead letters.
DEAD_LETTERS = "%DLQ%"

#: How often at the most a message may be delivered by a policy that has an end.
MOST_DELIVERIES = 1000
_MOST_WAITS = 64
_LONGEST_MS = 30 * 86_400_000
_MOST_FACTOR = 100.0

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|min|h|d)", re.ASCII)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_GROWING = re.compile(r"(\S+?)\s*\.\.\s*(\S+?)(?:\s*x\s*(\d+(?:\.\d+)?))?", re.ASCII)
_BETWEEN = re.compile(r"[,\s]+")
_HOW = "write waits as in '1s 10s 1m', or bounds as in '1s..10m' or '1s..10m x3'"


@dataclass(frozen=True, slots=True)
class FixedDelays:
    """The nth failure of a message waits for the nth of these; from the last on all for the last. Without any:
    at once."""

    delays_ms: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.delays_ms) > _MOST_WAITS or any(not 0 <= one <= _LONGEST_MS for one in self.delays_ms):
            raise NotAllowedError(f"a schedule has at most {_MOST_WAITS} waits of up to 30 days", hint=_HOW)

    def delay_ms(self, failures: int) -> int:
        """How long a message waits that has failed so often."""
        return self.delays_ms[min(max(failures, 1), len(self.delays_ms)) - 1] if self.delays_ms else 0

    def __str__(self) -> str:
        return " ".join(map(_span_text, self.delays_ms)) or "0s"


@dataclass(frozen=True, slots=True)
class Backoff:
    """The first failure waits for `first_ms`, each further one `factor` times as long, none longer than
    `most_ms`."""

    first_ms: int
    most_ms: int
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.first_ms <= self.most_ms <= _LONGEST_MS or not 1 <= self.factor <= _MOST_FACTOR:
            raise NotAllowedError(
                f"waits grow from 1 ms or more up to 30 days at the most, by a factor of 1 to {_MOST_FACTOR:g}",
                hint=_HOW,
            )

    def delay_ms(self, failures: int) -> int:
        """How long a message waits that has failed so often."""
        wait = float(self.first_ms)
        for _ in range(failures - 1):
            wait *= self.factor
            if wait >= self.most_ms or self.factor == 1:
                break
        return min(round(wait), self.most_ms)

    def __str__(self) -> str:
        grows = "" if self.factor == 2 else f" x{self.factor:g}"
        return f"{_span_text(self.first_ms)}..{_span_text(self.most_ms)}{grows}"


RetrySchedule = FixedDelays | Backoff


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """None says nothing: the level below does, and at last nobody. `max_deliveries`: 0 for no end; a message that
    was delivered so often and failed is given up. `dead_letter_topic`: "" for the subscription's own; a name
    without a namespace is one in the topic's."""

    schedule: RetrySchedule | None = None
    max_deliveries: int | None = None
    dead_letter_topic: str | None = None

    def __post_init__(self) -> None:
        most = self.max_deliveries
        if most is not None and not 0 <= most <= MOST_DELIVERIES:
            raise NotAllowedError(
                f"a message is delivered 1 to {MOST_DELIVERIES} times, or without end (0), and not {most} times"
            )
        if self.dead_letter_topic:
            _parse_topic(self.dead_letter_topic, TopicName.parse("persistent://public/default/t"))

    @property
    def active(self) -> bool:
        """Whether the server does anything by it; else what fails comes again at once, for ever."""
        return self.schedule is not None or bool(self.max_deliveries)

    def over(self, below: "RetryPolicy | None") -> "RetryPolicy":
        """This one's words where it has any, else those of the level below."""
        if below is None:
            return self
        return RetryPolicy(
            below.schedule if self.schedule is None else self.schedule,
            below.max_deliveries if self.max_deliveries is None else self.max_deliveries,
            below.dead_letter_topic if self.dead_letter_topic is None else self.dead_letter_topic,
        )

    def delay_ms(self, failures: int) -> int:
        """How long a message waits that has failed so often."""
        return 0 if self.schedule is None else self.schedule.delay_ms(failures)

    def is_over(self, failures: int) -> bool:
        """Whether a message that has failed so often is given up."""
        return bool(self.max_deliveries) and failures >= (self.max_deliveries or 0)

    def dead_letters_of(self, topic: TopicName, subscription: str) -> TopicName:
        """Where the subscription's dead letters go: all partitions of a topic have one place, in Pulsar's words
        `<topic>-<subscription>-DLQ` unless another is said. What fails there does not go round in a circle."""
        said = _parse_topic(self.dead_letter_topic, topic) if self.dead_letter_topic else topic.base
        if said != topic.base:
            return said
        return TopicName(topic.namespace, f"{topic.local}-{subscription.replace('/', '_')}-DLQ", Domain.PERSISTENT)

    def named_topic(self, topic: TopicName) -> TopicName | None:
        """The topic that the policy names for dead letters of `topic`: a role that stores the policy must be
        allowed to produce there, since the broker writes with more rights. None if it names none, or `%DLQ%GROUP`
        in the same namespace, as the RocketMQ gateway does."""
        if not self.dead_letter_topic:
            return None
        said = _parse_topic(self.dead_letter_topic, topic)
        own = said.namespace == topic.namespace and said.local.startswith(DEAD_LETTERS)
        return None if own or said == topic.base else said


def _parse_topic(name: str, near: TopicName) -> TopicName:
    """InvalidNameError. A name without a namespace is one in the namespace of the topic `near`."""
    if "/" not in name:
        name = f"persistent://{near.namespace}/{name}"
    found = TopicName.parse(name)
    if not found.persistent or found.partition is not None:
        raise NotAllowedError(f"{name[:80]!r} cannot take dead letters", hint="name a persistent topic as a whole")
    return found


# --- as text -------------------------------------------------------------------------------------------------


def parse_schedule(text: str) -> RetrySchedule:
    """NotAllowedError for what is none."""
    text = text.strip()
    growing = _GROWING.fullmatch(text)
    if growing is not None:
        return Backoff(_span_ms(growing[1]), _span_ms(growing[2]), float(growing[3] or 2))
    return FixedDelays(tuple(_span_ms(part) for part in _BETWEEN.split(text) if part))


def _span_ms(text: str) -> int:
    if text == "0":
        return 0
    found = _SPAN.fullmatch(text)
    if found is None:
        raise NotAllowedError(f"{text[:80]!r} is not a wait", hint=_HOW)
    return round(float(found[1]) * _UNITS_MS[found[2]])


def _span_text(span_ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if span_ms and span_ms % _UNITS_MS[unit] == 0:
            return f"{span_ms // _UNITS_MS[unit]}{unit}"
    return f"{span_ms}ms"


def retry_of(properties: Mapping[str, str]) -> RetryPolicy | None:
    """What a subscription's properties say of it; None if nothing. NotAllowedError for what cannot be."""
    schedule, most, topic = (properties.get(name) for name in (SCHEDULE, MAX_DELIVERIES, DEAD_LETTER_TOPIC))
    if schedule is None and most is None and topic is None:
        return None
    if most is not None and not (most.isascii() and most.isdigit() and len(most) < 6):
        raise NotAllowedError(f"{MAX_DELIVERIES} is a number, and not {most[:80]!r}")
    return RetryPolicy(
        None if schedule is None else parse_schedule(schedule), None if most is None else int(most), topic
    )


def with_retry(properties: Mapping[str, str], policy: RetryPolicy | None) -> dict[str, str]:
    """A subscription's properties, with this policy in place of whatever they said."""
    ours = (SCHEDULE, MAX_DELIVERIES, DEAD_LETTER_TOPIC)
    found = {name: text for name, text in properties.items() if name not in ours}
    policy = policy or RetryPolicy()
    if policy.schedule is not None:
        found[SCHEDULE] = str(policy.schedule)
    if policy.max_deliveries is not None:
        found[MAX_DELIVERIES] = str(policy.max_deliveries)
    if policy.dead_letter_topic is not None:
        found[DEAD_LETTER_TOPIC] = policy.dead_letter_topic
    return found


def at_most(policy: RetryPolicy, deliveries: int) -> RetryPolicy:
    """The policy with this bound, if it is the lower one."""
    mine = policy.max_deliveries
    return replace(policy, max_deliveries=min(mine, deliveries) if mine else deliveries)
