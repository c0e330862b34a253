"""The broker as a whole: which topics it serves, who serves the others, and who somebody is.

What passes through all topics of a broker together, and which ones it passes: known without asking any.

Lists of topics: filtered by a pattern, and watched for what comes and goes.

Regular expressions of clients.

Calls of clients that reached the wrong broker: its gateway hands them on to that of the right one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from weir.broker.api.cluster import Bundles
from weir.broker.api.security import Identity
from weir.broker.api.stats import TopicStats
from weir.broker.api.topics import HalfCheckers, Topic
from weir.model.errors import NotAllowedError
from weir.model.registry import BrokerInfo
from weir.model.topics import Domain, NamespaceName, TopicName

#: So many busy topics are remembered between two looks; of more, some are noticed at a later one.
MAX_BUSY = 2_000


class TopicsFlow:
    """Totals of one direction since the broker started. Each topic's own meter counts here, too."""

    __slots__ = ("busy", "bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        #: Topics through which something passed since somebody took them; None while nobody looks.
        self.busy: set[TopicName] | None = None

    def note(self, topic: TopicName, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        busy = self.busy
        if busy is not None and len(busy) < MAX_BUSY:
            busy.add(topic)

    def take_busy(self) -> set[TopicName]:
        """Those since the last time; from now on they are remembered."""
        busy, self.busy = self.busy, set()
        return busy or set()

    def forget_busy(self) -> None:
        """Nobody looks any more."""
        self.busy = None


class BrokerFlows:
    """Both directions: what was stored, and what consumers and readers were given."""

    __slots__ = ("given", "taken")

    def __init__(self) -> None:
        self.taken = TopicsFlow()
        self.given = TopicsFlow()


class TopicListChange(Protocol):
    @property
    def added(self) -> Sequence[TopicName]: ...

    @property
    def removed(self) -> Sequence[TopicName]: ...

    @property
    def hash(self) -> str: ...


class TopicListWatch(Protocol):
    """A list of topics, and what changes in it."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def hash(self) -> str: ...

    @property
    def is_news(self) -> bool:
        """Whether the list differs from the one whose hash the watcher knew."""

    async def next(self) -> TopicListChange: ...

    def close(self) -> None:
        """Nobody looks any more."""


class TopicLists(Protocol):
    async def watch_topics(
        self,
        namespace: NamespaceName,
        *,
        role: str,
        pattern: str | None = None,
        domain: Domain | None = None,
        known_hash: str = "",
    ) -> TopicListWatch:
        """NotAuthorisedError; TooManyError if no client could be told so many. And nothing is told any more
        once the role may not know."""


_MAX_PATTERN_CHARS = 512


class Pattern:
    """A regular expression of a client, in RE2's syntax as in Pulsar.

    RE2 takes time linear in the input whatever the pattern, so a client cannot stall the broker with one.
    """

    def __init__(self, pattern: str) -> None:
        """NotAllowedError if it is too long or not a pattern."""
        import re2  # loaded when first needed: most brokers never see a pattern

        if len(pattern) > _MAX_PATTERN_CHARS:
            raise NotAllowedError(f"a pattern has at most {_MAX_PATTERN_CHARS} characters, not {len(pattern)}")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = 1 << 20
        try:
            self._pattern = re2.compile(pattern, options)
        except re2.error as bad:
            raise NotAllowedError(f"{pattern[:80]!r} is not a pattern: {bad}", hint="see RE2's syntax") from None

    def fullmatch(self, text: str) -> bool:
        return self._pattern.fullmatch(text) is not None

    def found_in(self, text: str) -> bool:
        """Whether any part of the text matches."""
        return self._pattern.search(text) is not None


@dataclass(frozen=True, slots=True)
class ClientCall:
    """What a client asked, in its protocol's own bytes. `role`: who it is, by the broker that it asked. `wait_ms`:
    how long the answer may take. `about`: names that belong to the call and are not in its body."""

    gateway: str
    method: str
    role: str
    client: str
    body: bytes
    wait_ms: int
    about: tuple[str, ...] = ()


#: Answers a call that another broker's gateway handed on.
Answering: TypeAlias = Callable[[ClientCall], Awaitable[Sequence[bytes]]]


class GatewayCalls(Protocol):
    def answer(self, gateway: str, answering: Answering) -> None:
        """The gateway of this name answers such calls from now on."""

    async def hand_on(self, broker_id: str, call: ClientCall) -> Sequence[bytes]:
        """Have the other broker's gateway answer it (this broker's own, if it is this one). A PeerError if it
        cannot be asked."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker that serves a topic; `here` if it is this one. `listeners`: where it is reached, by the name of
    each listener in the configuration; empty if nobody knows. `node_id`: its number, -1 if nobody knows. `epoch`
    grows whenever the topic gets another owner, and never goes back. `taken`: whether it has the topic's bundle,
    or is given it; else it is who would be chosen, and by the time that somebody asks it may be another."""

    here: bool
    listeners: Mapping[str, str] = field(default_factory=dict)
    broker_id: str = ""
    node_id: int = -1
    epoch: int = 0
    taken: bool = True

    def url(self, *names: str) -> str:
        """The first of these listeners that it has; "" if it has none."""
        return next((self.listeners[name] for name in names if self.listeners.get(name)), "")


class Broker(Protocol):
    async def topic(self, name: TopicName, *, role: str, create: bool = True) -> Topic:
        """The topic, loaded and owned by this broker. TopicNotFoundError, or made by policy if `create`;
        NotOwnerError (with the owner's address) if another broker has it."""

    async def partitions(self, name: TopicName, *, role: str, create: bool = True) -> int:
        """How many partitions the topic has; 0 if it is not partitioned."""

    async def owner(self, name: TopicName, *, role: str) -> Owner:
        """Who serves the topic, or will."""

    def owner_now(self, name: TopicName) -> Owner:
        """`owner`, whoever asks, from memory: it may be a moment out of date. While a topic is handed over, and
        after, it is the broker that gets it: whoever finds a producer or consumer closed asks this to know where
        to go."""

    def owners_now(self, name: TopicName, partitions: Sequence[int]) -> Sequence[Owner]:
        """`owner_now` of each of these partitions of the topic, all at one moment, at little more than the cost
        of one."""

    def brokers(self) -> Sequence[BrokerInfo]:
        """Every broker that is registered, this one among them, in the order of their node ids."""

    def former_brokers(self) -> Sequence[BrokerInfo]:
        """Those that were registered until some seconds ago, and went without a word: others expect them still."""

    @property
    def bundles(self) -> Bundles:
        """What brokers have, and give each other."""

    async def topics(self, namespace: str, *, role: str, pattern: str | None = None) -> list[TopicName]:
        """Every topic (each partition on its own) of the namespace. TooManyError if no client could be told so
        many."""

    @property
    def flows(self) -> BrokerFlows:
        """What passes through all topics of this broker together."""

    @property
    def half_checkers(self) -> HalfCheckers:
        """Who can be asked what became of half messages."""

    def served_now(self, name: TopicName) -> Topic | None:
        """The topic, if this broker serves it now; nothing is loaded."""

    async def stats(self, name: TopicName) -> TopicStats:
        """The stats of a topic, whoever asks; one that no broker has loaded is not loaded for it if that can be
        avoided. TopicNotFoundError, NotOwnerError."""

    @property
    def loaded(self) -> Sequence[Topic]:
        """The topics that this broker serves now."""

    async def load(self, name: TopicName, *, create: bool = True) -> Topic:
        """`topic`, whoever asks; whether they may is not asked."""

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        """Let go of a topic; the next who asks loads it again, here or elsewhere."""

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """End a topic with all of its partitions and everything in them; whether the caller may is not asked.
        Those that are connected are a reason not to, unless forced (NotAllowedError)."""

    async def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        """Who is behind the credentials; NotAuthenticatedError. Methods: `token`, `password` (a name, a zero byte,
        and a user's password or a token), `signature` (an access key, the moment that it signed and the signature,
        zero bytes between), `tls`, and `none`."""
