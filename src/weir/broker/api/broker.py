"""The broker as a whole: which topics it serves, who serves the others, and who somebody is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from weir.broker.api.access import Identity
from weir.broker.api.cluster import Bundles
from weir.broker.api.flows import BrokerFlows
from weir.broker.api.half_messages import HalfCheckers
from weir.broker.api.stats import TopicStats
from weir.broker.api.topics import Topic
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName


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
