"""Clients with telemetry streams: their settings and lite topics, and pushes of changed group settings to them."""

from asyncio import Event
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weir.model.subscriptions import GroupSettings
from weir.model.topics import TopicName
from weir.runtime.interfaces import Clock
from weir.runtime.tasks import TaskScope
from weir.wire.rocketmq import rocketmq_pb2 as api

if TYPE_CHECKING:
    from weir.gateway.rocketmq.call import Call
    from weir.gateway.rocketmq.session import Session


_LITE = (api.ClientType.LITE_PUSH_CONSUMER, api.ClientType.LITE_SIMPLE_CONSUMER)
#: Expiry of lite subscriptions, in seconds; clients repeat them every 30 s.
_REPEATED_S = 120.0


class Client:
    """A client that has sent its settings. `ends`: callbacks for its end."""

    __slots__ = ("call", "checked", "ends", "id", "session", "settings")

    def __init__(self, call: "Call", settings: Any) -> None:
        self.id = call.client_id
        self.session = call.session
        self.call = call
        self.settings = settings
        self.ends: list[Callable[[], None]] = []
        #: Topics for whose half messages the broker can send transaction checks to this client.
        self.checked: set[TopicName] = set()

    @property
    def reachable(self) -> bool:
        return self.call.open

    def tell(self, command: Any) -> bool:
        """Send a server command; returns whether the stream was open."""
        if not self.reachable:
            return False
        self.call.send(command)
        return True

    def forget(self) -> None:
        ends, self.ends = self.ends, []
        self.checked.clear()
        for end in ends:
            end()


class Clients:
    """Clients of this broker by ID, each with its newest telemetry stream."""

    def __init__(self) -> None:
        self._by_id: dict[str, Client] = {}
        #: Callbacks for answers to commands, by client and nonce.
        self.waiting: dict[tuple[str, str], Callable[[Any], None]] = {}
        #: Subscribed lite topics, by client, topic and group.
        self._lite: dict[tuple[str, TopicName, str], set[str]] = {}
        self._watching: dict[tuple[str, TopicName, str], list[Event]] = {}
        #: Time of each client's last lite subscription sync.
        self._said_at: dict[tuple[str, TopicName, str], float] = {}
        #: Called with the ID of each terminated client, to release its messages.
        self.on_gone: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._by_id)

    def all(self) -> list[Client]:
        return list(self._by_id.values())

    def find(self, client_id: str) -> Client | None:
        return self._by_id.get(client_id)

    def said(self, call: "Call", settings: Any) -> Client:
        """Register a client after it sent its settings, for the first time or again."""
        known = self._by_id.get(call.client_id)
        if known is not None:
            known.forget()
        client = self._by_id[call.client_id] = Client(call, settings)
        return client

    def answered(self, call: "Call", command: Any) -> None:
        """Pass a client's answer to the waiting callback."""
        nonce = getattr(command, str(command.WhichOneof("command"))).nonce
        waiting = self.waiting.pop((call.client_id, nonce), None)
        if waiting is not None:
            waiting(command)

    def hung_up(self, call: "Call") -> None:
        """Unregister an ended telemetry stream; its client may open another."""
        client = self._by_id.get(call.client_id)
        if client is not None and client.call is call:
            client.forget()

    def lite_topics(self, client_id: str, topic: TopicName, group: str) -> set[str]:
        return self._lite.get((client_id, topic, group), set())

    def is_lite(self, client_id: str) -> bool:
        """Whether the client is a lite consumer, which receives only lite topics."""
        known = self._by_id.get(client_id)
        return known is not None and known.settings.client_type in _LITE

    def said_lite(self, client_id: str, topic: TopicName, group: str, now: float) -> None:
        """Record the time of a lite subscription sync (`now`, in seconds). Subscriptions of clients of other
        brokers expire if the clients do not repeat them."""
        for key in [key for key, said_at in self._said_at.items() if said_at < now - _REPEATED_S]:
            del self._said_at[key]
            if key[0] not in self._by_id:
                self._lite.pop(key, None)
        self._said_at[(client_id, topic, group)] = now

    def set_lite_topics(self, client_id: str, topic: TopicName, group: str, wanted: set[str]) -> None:
        key = (client_id, topic, group)
        if wanted:
            self._lite[key] = wanted
        else:
            self._lite.pop(key, None)
        for changed in self._watching.get(key, ()):
            changed.set()

    @contextmanager
    def watching_lite(self, client_id: str, topic: TopicName, group: str, changed: Event) -> Iterator[None]:
        """Set the event whenever the client's lite topics change."""
        watching = self._watching.setdefault((client_id, topic, group), [])
        watching.append(changed)
        try:
            yield
        finally:
            watching.remove(changed)
            if not watching:
                self._watching.pop((client_id, topic, group), None)

    def lite_topics_of_others(self, client_id: str, topic: TopicName, group: str) -> set[str]:
        """Lite topics of the topic that other clients of the group subscribe to."""
        return {
            name
            for (other, its_topic, its_group), names in self._lite.items()
            if other != client_id and its_topic == topic and its_group == group
            for name in names
        }

    def take_lite_topics(self, client_id: str, topic: TopicName, group: str, names: set[str]) -> None:
        """Unsubscribe all other clients of the group from these lite topics, and notify them."""
        for other, its_topic, its_group in list(self._lite):
            if other != client_id and its_topic == topic and its_group == group:
                for name in sorted(self._lite[(other, topic, group)] & names):
                    self.lose_lite_topic(other, topic, group, name)

    def lose_lite_topic(self, client_id: str, topic: TopicName, group: str, name: str) -> None:
        """Unsubscribe a client from a lite topic, and notify it."""
        self.set_lite_topics(client_id, topic, group, self.lite_topics(client_id, topic, group) - {name})
        client = self._by_id.get(client_id)
        if client is not None:
            command = api.NotifyUnsubscribeLiteCommand(lite_topic=name)
            client.tell(api.TelemetryCommand(notify_unsubscribe_lite_command=command))

    def terminated(self, client_id: str) -> None:
        client = self._by_id.pop(client_id, None)
        if client is not None:
            client.forget()
        for key in [key for key in self._lite if key[0] == client_id]:
            del self._lite[key]
            self._said_at.pop(key, None)
        for gone in self.on_gone:
            gone(client_id)

    def left(self, session: "Session") -> None:
        """Terminate all clients of an ended connection."""
        for client in [one for one in self._by_id.values() if one.session is session]:
            self.terminated(client.id)


_LOOK_S = 1.0


class Announcing:
    """Polls the settings of groups with connected clients, and sends changes to these clients."""

    def __init__(self, clock: Clock, clients: Clients) -> None:
        self._clock = clock
        self._clients = clients
        self._tasks = TaskScope("rocketmq settings")
        self._watched: dict[str, tuple[Client, GroupSettings, Callable[[], GroupSettings], Callable[[], Any]]] = {}
        self._looking = False

    def watch(self, client: Client, now: Callable[[], GroupSettings], answer: Callable[[], Any]) -> None:
        """Watch a group's settings for a client that has the current ones. `now` returns the group's settings;
        `answer` returns the client's settings message."""
        self._watched[client.id] = (client, now(), now, answer)
        if not self._looking:
            self._looking = True
            self._tasks.spawn(self._look(), "look")

    async def _look(self) -> None:
        while self._watched:
            await self._clock.sleep(_LOOK_S)
            for client_id, (client, told, now, answer) in list(self._watched.items()):
                if self._clients.find(client_id) is not client:
                    if self._watched[client_id][0] is client:
                        del self._watched[client_id]
                elif (settings := now()) != told:
                    status = api.Status(code=api.Code.OK, message="OK")
                    if client.tell(api.TelemetryCommand(status=status, settings=answer())):
                        self._watched[client_id] = (client, settings, now, answer)
        self._looking = False

    async def close(self) -> None:
        await self._tasks.close()
