"""The broker as a whole: topic lookup and ownership, topic lists and watches, totals of traffic, authentication.

Also clients' topic patterns, and the forwarding of client calls that reached the wrong broker to the gateway of
the right one.
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

#: Most busy topics recorded between two calls of `take_busy`; a later call reports the topics beyond this limit.
MAX_BUSY = 2_000


class TopicsFlow:
    """Totals of one direction since the broker started. The meter of each topic also counts here."""

    __slots__ = ("busy", "bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        #: Topics with traffic since the last `take_busy`; None while recording is off.
        self.busy: set[TopicName] | None = None

    def note(self, topic: TopicName, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        busy = self.busy
        if busy is not None and len(busy) < MAX_BUSY:
            busy.add(topic)

    def take_busy(self) -> set[TopicName]:
        """Return the topics with traffic since the last call, and start recording."""
        busy, self.busy = self.busy, set()
        return busy or set()

    def forget_busy(self) -> None:
        """Stop recording."""
        self.busy = None


class BrokerFlows:
    """Totals of both directions: `taken` counts stored messages, `given` counts messages to consumers and
    readers."""

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
    """A list of topics and the changes to it."""

    @property
    def names(self) -> Sequence[TopicName]: ...

    @property
    def hash(self) -> str: ...

    @property
    def is_news(self) -> bool:
        """Whether the list differs from the list behind the watcher's known hash."""

    async def next(self) -> TopicListChange: ...

    def close(self) -> None:
        """End the watch."""


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
        """Watch the topics of a namespace. NotAuthorisedError; TooManyError if the list is too long for any
        client. The watch reports no more changes once the role loses the permission to list topics."""


_MAX_PATTERN_CHARS = 512


class Pattern:
    """A regular expression of a client, in RE2's syntax as in Pulsar.

    RE2 runs in time linear in the input for every pattern, so a client cannot stall the broker with a pattern.
    """

    def __init__(self, pattern: str) -> None:
        """Compile the pattern; NotAllowedError if it is too long or invalid."""
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
    """A request of a client, in the bytes of its protocol. `role`: the client's role, as the first broker
    authenticated it. `wait_ms`: the longest time until the answer. `about`: names that belong to the call but are
    not in its body."""

    gateway: str
    method: str
    role: str
    client: str
    body: bytes
    wait_ms: int
    about: tuple[str, ...] = ()


#: Answers a call that another broker's gateway forwarded.
Answering: TypeAlias = Callable[[ClientCall], Awaitable[Sequence[bytes]]]


class GatewayCalls(Protocol):
    def answer(self, gateway: str, answering: Answering) -> None:
        """Register the function that answers forwarded calls for the gateway of this name."""

    async def hand_on(self, broker_id: str, call: ClientCall) -> Sequence[bytes]:
        """Forward the call to the gateway of the other broker (or of this broker, if it is this one) and return
        the answer. PeerError if the broker is unreachable."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker that serves a topic; `here` if it is this one. `listeners`: its addresses by the name of
    each listener in the configuration; empty if unknown. `node_id`: its number, -1 if unknown. `epoch` grows
    whenever the owner of the topic changes, and never decreases. `taken`: whether the broker owns the topic's
    bundle or receives it in a handover; otherwise it is the expected owner, which may change until the bundle has
    an owner."""

    here: bool
    listeners: Mapping[str, str] = field(default_factory=dict)
    broker_id: str = ""
    node_id: int = -1
    epoch: int = 0
    taken: bool = True

    def url(self, *names: str) -> str:
        """The address of the first of these listeners that it has; "" if it has none."""
        return next((self.listeners[name] for name in names if self.listeners.get(name)), "")


class Broker(Protocol):
    async def topic(self, name: TopicName, *, role: str, create: bool = True) -> Topic:
        """Return the topic, loaded and owned by this broker. If the topic does not exist, create it if `create` is
        set and the policy permits, else TopicNotFoundError. NotOwnerError (with the owner's address) if another
        broker owns it."""

    async def partitions(self, name: TopicName, *, role: str, create: bool = True) -> int:
        """The number of partitions of the topic; 0 if it is not partitioned."""

    async def owner(self, name: TopicName, *, role: str) -> Owner:
        """The current or expected owner of the topic."""

    def owner_now(self, name: TopicName) -> Owner:
        """Like `owner`, without a permission check and from memory, so it may be a moment out of date. During and
        after a handover it is the receiving broker: a gateway calls this after a producer or consumer closed, to
        redirect the client."""

    def owners_now(self, name: TopicName, partitions: Sequence[int]) -> Sequence[Owner]:
        """`owner_now` of each of these partitions of the topic, all from one moment. The cost is little more than
        that of one partition."""

    def brokers(self) -> Sequence[BrokerInfo]:
        """Every registered broker, including this one, in the order of the node ids."""

    def former_brokers(self) -> Sequence[BrokerInfo]:
        """Brokers whose registration ended some seconds ago without a shutdown: the other brokers expect them
        back."""

    @property
    def bundles(self) -> Bundles:
        """The bundles of the cluster and their owners."""

    async def topics(self, namespace: str, *, role: str, pattern: str | None = None) -> list[TopicName]:
        """Every topic of the namespace, with each partition as its own topic. TooManyError if the list is too long
        for any client."""

    @property
    def flows(self) -> BrokerFlows:
        """Totals of the traffic through all topics of this broker."""

    @property
    def half_checkers(self) -> HalfCheckers:
        """The connected producers that answer checks of half messages."""

    def served_now(self, name: TopicName) -> Topic | None:
        """The topic if this broker serves it now; the call loads nothing."""

    async def stats(self, name: TopicName) -> TopicStats:
        """The stats of a topic, without a permission check. If possible, the call does not load an unloaded topic.
        TopicNotFoundError, NotOwnerError."""

    @property
    def loaded(self) -> Sequence[Topic]:
        """The topics that this broker serves now."""

    async def load(self, name: TopicName, *, create: bool = True) -> Topic:
        """Like `topic`, without a permission check."""

    async def unload(self, name: TopicName, reason: str = "the topic is unloaded") -> None:
        """Unload a topic; the next request for it loads it again, on this broker or another."""

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all of its partitions and messages, without a permission check. NotAllowedError if
        the topic has connected clients, unless forced."""

    async def authenticate(self, method: str, credentials: bytes, *, certificate: bytes | None = None) -> Identity:
        """Return the identity that the credentials prove; NotAuthenticatedError. Methods: `token`, `password` (a
        name, a zero byte, and a user's password or a token), `signature` (an access key, the signed time and the
        signature, with zero bytes between), `tls`, and `none`."""
