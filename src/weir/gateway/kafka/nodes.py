"""The brokers as the clients of one listener see them: number, address, rack, and who leads which partition.

A client that came by `kafka_tls` is told where the others have theirs. A broker without such a listener is not
there for it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from weir.broker.api import Balance, Broker, Owner
from weir.gateway.kafka.errors import Code, RefusedError
from weir.model.registry import BrokerInfo
from weir.model.topics import TopicName

#: In place of a broker's number: nobody that this client could reach.
NOBODY = -1
#: In place of an epoch: the client does not say, or nobody knows.
UNSAID = -1
_MAX_PORT = 65_535


class Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class Nodes:
    """Answers from memory: it may be a moment out of date."""

    def __init__(
        self,
        broker: Broker,
        *,
        node_id: int,
        listener: str,
        advertised: Callable[[], tuple[str, int]],
        balance: Balance | None = None,
    ) -> None:
        """`advertised`: where this broker's own listener is reached, whatever its registration says."""
        self._broker = broker
        self._listener = listener
        self._advertised = advertised
        self._balance = balance
        self.here = node_id

    def all(self) -> dict[int, Node]:
        """Every broker that clients of this listener can reach, by its number and in the order of these."""
        brokers = self._broker.brokers()
        found = self._reached(brokers)
        rack = next((info.rack or None for info in brokers if info.node_id == self.here), None)
        found[self.here] = Node(self.here, *self._advertised(), rack)
        return dict(sorted(found.items()))

    def known_by(self, nodes: Mapping[int, Node]) -> list[Node]:
        """These, and those whose lease has just ended. librdkafka takes leave of a broker that it is not told of
        any more, and forgets for a second who leads that broker's partitions now."""
        known = self._reached(self._broker.former_brokers()) | dict(nodes)
        return [known[number] for number in sorted(known)]

    def _reached(self, brokers: Sequence[BrokerInfo]) -> dict[int, Node]:
        return {
            info.node_id: Node(info.node_id, *address, info.rack or None)
            for info in brokers
            if (address := parse_address(info.listeners.get(self._listener, ""))) is not None
        }

    def controller(self, nodes: Mapping[int, Node]) -> int:
        """The elected leader, by its number among `all`. Any broker does what a controller does, so while none is
        elected, or its listener is of another kind, it is another one that all of them name."""
        leader = "" if self._balance is None else self._balance.leader()
        if leader:
            found = next((info.node_id for info in self._broker.brokers() if info.broker_id == leader), NOBODY)
            if found in nodes:
                return found
        return next(iter(nodes))

    def of(self, owner: Owner) -> Node | None:
        """Where clients of this listener find an owner; None if they cannot."""
        if owner.here:
            return Node(self.here, *self._advertised())
        address = parse_address(owner.listeners.get(self._listener, ""))
        return None if address is None or owner.node_id < 0 else Node(owner.node_id, *address)

    def number_of(self, owner: Owner) -> int:
        return self.here if owner.here else owner.node_id

    def leader(self, part: TopicName, may_be_here: bool = False) -> tuple[Node, int] | None:
        """Who leads a partition, and its epoch; None if that is not known yet, or if it would be this broker,
        which has just said that it is not."""
        owner = self._broker.owner_now(part)
        node = None if owner.here and not may_be_here else self.of(owner)
        return None if node is None else (node, owner.epoch)


def parse_address(text: str) -> tuple[str, int] | None:
    """Host and port of a listener as a broker registers it."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_epoch(said: int, now: int, part: TopicName | None) -> None:
    """What a client believes of the leader that it asks: one that is behind must look for the leader again, one
    that is ahead knows of a leader that this broker has not heard of."""
    if said in (now, UNSAID):
        return
    if said < now:
        raise RefusedError(Code.FENCED_LEADER_EPOCH, f"{part} is led in epoch {now}, not in {said} any more")
    raise RefusedError(Code.UNKNOWN_LEADER_EPOCH, f"{part} is led in epoch {now}, as far as is known here")
