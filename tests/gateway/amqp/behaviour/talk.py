"""Talks with a broker through pika: every answer, errors included, is a value that can be written down.

A message is its body, with a `*` behind it if it comes again. What is made up (names, tags) is replaced.
"""

import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelClosedByBroker,
    ChannelWrongStateError,
    ConnectionClosedByBroker,
    ConnectionWrongStateError,
    NackError,
    UnroutableError,
)

TIMEOUT_S = 60.0
#: How long to look for what must not come.
QUIET_S = 0.05
_MADE_UP = re.compile(r"\b(amq\.gen-|amq\.ctag-|amq\.rabbitmq\.reply-to\.|ctag\d+\.)[\w.+/=-]+")

Json = Any


def until(true: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Wait for it; what it answered, or `timeout`."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = true()
        if found:
            return found
        if time.monotonic() > deadline:
            return "timeout"
        time.sleep(0.01)


def plain(value: Any, token: str) -> Json:
    """Without what is another one each time."""
    match value:
        case bytes():
            return plain(value.decode("utf-8", "backslashreplace"), token)
        case str():
            return _MADE_UP.sub(r"\1*", value.replace(token, ""))
        case dict():
            return {plain(name, token): plain(one, token) for name, one in value.items()}
        case list() | tuple():
            return [plain(one, token) for one in value]
        case None | bool() | int() | float():
            return value
        case _:
            return str(value)


class Channel:
    """A channel, and what came on it. Each verb answers what the broker did."""

    def __init__(self, talk: "Talk", channel: BlockingChannel) -> None:
        self.talk = talk
        self.pika = channel
        #: What was delivered, oldest first, by no more than the body and whether it came before.
        self.got: list[str] = []
        #: The same in full.
        self.deliveries: list[dict[str, Any]] = []
        self.returned: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.tags: list[int] = []
        channel.add_on_return_callback(self._on_return)
        channel.add_on_cancel_callback(lambda frame: self.cancelled.append(frame.method.consumer_tag))

    def _on_return(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.returned.append(
            {
                "code": method.reply_code,
                "text": method.reply_text,
                "exchange": method.exchange,
                "key": method.routing_key,
                "body": body,
                "properties": said(properties),
            }
        )

    def ask(self, call: Callable[[], Any]) -> Any:
        """What the broker answers; an error is one, too."""
        try:
            return call()
        except ChannelClosedByBroker as error:
            return f"channel {error.reply_code} {error.reply_text}"
        except ConnectionClosedByBroker as error:
            return f"connection {error.reply_code} {error.reply_text}"
        except (ChannelWrongStateError, ConnectionWrongStateError):
            return "closed before"
        except ValueError as error:
            if "closed before call" in str(error):  # pika's word for a connection that has ended
                return "closed before"
            raise
        except AMQPConnectionError as error:
            return f"connection lost: {type(error).__name__}"

    def _ok(self, call: Callable[[], Any]) -> Any:
        found = self.ask(call)
        return found if isinstance(found, str) else "ok"

    # --- exchanges and queues --------------------------------------------------------------------------------

    def exchange(self, name: str, kind: str = "direct", **options: Any) -> Any:
        return self._ok(lambda: self.pika.exchange_declare(name, kind, **options))

    def delete_exchange(self, name: str, **options: Any) -> Any:
        return self._ok(lambda: self.pika.exchange_delete(name, **options))

    def bind_exchange(self, to: str, source: str, key: str = "", **options: Any) -> Any:
        return self._ok(lambda: self.pika.exchange_bind(to, source, key, **options))

    def unbind_exchange(self, to: str, source: str, key: str = "", **options: Any) -> Any:
        return self._ok(lambda: self.pika.exchange_unbind(to, source, key, **options))

    def declare(self, name: str = "", **options: Any) -> Any:
        """Its name, messages and consumers."""
        found = self.ask(lambda: self.pika.queue_declare(name, **options))
        if isinstance(found, str):
            return found
        return [found.method.queue, found.method.message_count, found.method.consumer_count]

    def queue(self, name: str = "", **options: Any) -> str:
        """Declare it, as a thing that simply works; its name."""
        found = self.declare(name, **options)
        if isinstance(found, str):
            raise AssertionError(found)
        return str(found[0])

    def bind(self, queue: str, exchange: str, key: str = "", **options: Any) -> Any:
        return self._ok(lambda: self.pika.queue_bind(queue, exchange, key, **options))

    def unbind(self, queue: str, exchange: str, key: str = "", **options: Any) -> Any:
        return self._ok(lambda: self.pika.queue_unbind(queue, exchange, key, **options))

    def purge(self, name: str) -> Any:
        found = self.ask(lambda: self.pika.queue_purge(name))
        return found if isinstance(found, str) else found.method.message_count

    def delete(self, name: str, **options: Any) -> Any:
        found = self.ask(lambda: self.pika.queue_delete(name, **options))
        return found if isinstance(found, str) else found.method.message_count

    def count(self, name: str) -> Any:
        """Messages that are ready."""
        found = self.declare(name, passive=True)
        return found if isinstance(found, str) else found[1]

    def until_count(self, name: str, count: int) -> Any:
        """Wait until so many are ready; answers how many are."""
        until(lambda: self.count(name) == count)
        return self.count(name)

    # --- publishing ------------------------------------------------------------------------------------------

    def confirm(self) -> "Channel":
        self.pika.confirm_delivery()
        return self

    def publish(
        self, exchange: str, key: str, body: bytes | str = b"", *, mandatory: bool = False, **properties: Any
    ) -> Any:
        """On a channel with confirms: `ack`, `nack` or `returned`."""
        content = body.encode() if isinstance(body, str) else body
        found = self.ask(
            lambda: self._published(exchange, key, content, pika.BasicProperties(**properties), mandatory)
        )
        return found if isinstance(found, str) else "sent"

    def _published(self, exchange: str, key: str, body: bytes, properties: Any, mandatory: bool) -> str:
        try:
            self.pika.basic_publish(exchange, key, body, properties, mandatory=mandatory)
        except UnroutableError:
            return "returned"
        except NackError:
            return "nack"
        return "ack" if self.pika._delivery_confirmation else "sent"

    def put(self, queue: str, *bodies: str, **properties: Any) -> None:
        """Put messages into a queue, and be sure that they are there."""
        channel = self.talk.confirming()
        for body in bodies:
            found = channel.publish("", queue, body, mandatory=True, **properties)
            if found != "ack":
                raise AssertionError(f"{body} to {queue}: {found}")

    def sync(self) -> Any:
        """What became of that for which the broker owes no answer: `ok`, or an error."""
        return self._ok(lambda: self.pika.flow(True))

    # --- consuming -------------------------------------------------------------------------------------------

    def qos(self, count: int, *, whole: bool = False, size: int = 0) -> Any:
        return self._ok(lambda: self.pika.basic_qos(prefetch_size=size, prefetch_count=count, global_qos=whole))

    def consume(self, queue: str, *, tag: str | None = None, no_ack: bool = False, **options: Any) -> Any:
        """Its tag."""
        return self.ask(
            lambda: self.pika.basic_consume(queue, self._on_message, auto_ack=no_ack, consumer_tag=tag, **options)
        )

    def _on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        text = body.decode("utf-8", "backslashreplace")
        self.got.append(text + "*" if method.redelivered else text)
        self.tags.append(method.delivery_tag)
        self.deliveries.append(
            {
                "tag": method.consumer_tag,
                "exchange": method.exchange,
                "key": method.routing_key,
                "redelivered": method.redelivered,
                "body": text,
                "properties": said(properties),
                "raw": properties,
            }
        )

    def wait(self, count: int) -> list[str]:
        """Wait until so many were delivered in all; answers them."""
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.got) < count and time.monotonic() < deadline and self.pika.is_open:
            error = self.ask(lambda: self.talk.pika.process_data_events(time_limit=0.05))
            if error is not None:
                return [*self.got, error]
        return list(self.got)

    def quiet(self) -> list[str]:
        """All that was delivered, after a moment in which more could come."""
        self.ask(lambda: self.talk.pika.process_data_events(time_limit=QUIET_S))
        self.ask(lambda: self.talk.pika.process_data_events(time_limit=QUIET_S))
        return list(self.got)

    def cancel(self, tag: str) -> Any:
        return self._ok(lambda: self.pika.basic_cancel(tag))

    def until_cancelled(self) -> list[str]:
        until(lambda: self.cancelled or self.talk.pika.process_data_events(time_limit=0.05))
        return list(self.cancelled)

    def until_returned(self) -> list[dict[str, Any]]:
        until(lambda: self.returned or self.talk.pika.process_data_events(time_limit=0.05))
        return list(self.returned)

    def get(self, queue: str, *, no_ack: bool = False) -> Any:
        """The message in full, or None."""
        found = self.ask(lambda: self.pika.basic_get(queue, auto_ack=no_ack))
        if isinstance(found, str):
            return found
        method, properties, body = found
        if method is None:
            return None
        self.tags.append(method.delivery_tag)
        text = body.decode("utf-8", "backslashreplace")
        return {
            "body": text + "*" if method.redelivered else text,
            "exchange": method.exchange,
            "key": method.routing_key,
            "left": method.message_count,
            "properties": said(properties),
            "tag": method.delivery_tag,
        }

    def take(self, queue: str, count: int | None = None) -> list[Any]:
        """Get and forget what is in it, or so many: the bodies."""
        found: list[Any] = []
        while count is None or len(found) < count:
            one = self.get(queue, no_ack=True)
            if one is None:
                break
            found.append(one["body"] if isinstance(one, dict) else one)
            if isinstance(one, str):
                break
        return found

    def await_message(self, queue: str) -> Any:
        """Get and forget the next one, when it is there."""
        return until(lambda: self.get(queue, no_ack=True))

    def ack(self, tag: int, *, multiple: bool = False) -> Any:
        return self._ok(lambda: self.pika.basic_ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> Any:
        return self._ok(lambda: self.pika.basic_nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> Any:
        return self._ok(lambda: self.pika.basic_reject(tag, requeue))

    def recover(self, *, requeue: bool = True) -> Any:
        return self._ok(lambda: self.pika.basic_recover(requeue))

    def tx_select(self) -> Any:
        return self._ok(self.pika.tx_select)

    def tx_commit(self) -> Any:
        return self._ok(self.pika.tx_commit)

    def tx_rollback(self) -> Any:
        return self._ok(self.pika.tx_rollback)

    def close(self) -> Any:
        return self._ok(self.pika.close)


class Talk:
    """A connection of pika's."""

    def __init__(self, address: str, *, vhost: str = "/", user: str = "guest", password: str = "guest") -> None:
        url = urlsplit(f"//{address}")
        self._parameters = pika.ConnectionParameters(
            url.hostname,
            url.port,
            vhost,
            pika.PlainCredentials(user, password),
            socket_timeout=TIMEOUT_S,
            stack_timeout=TIMEOUT_S,
            blocked_connection_timeout=TIMEOUT_S,
        )
        self.pika = pika.BlockingConnection(self._parameters)
        self._confirming: Channel | None = None

    def channel(self) -> Channel:
        """A channel; of a new connection if the broker has closed this one."""
        if not self.pika.is_open:
            self.pika = pika.BlockingConnection(self._parameters)
        return Channel(self, self.pika.channel())

    def confirming(self) -> Channel:
        """A channel with confirms, for what must have happened."""
        if self._confirming is None or not self._confirming.pika.is_open:
            self._confirming = self.channel().confirm()
        return self._confirming

    def close(self) -> None:
        try:
            if self.pika.is_open:
                self.pika.close()
        except AMQPError:
            pass


def said(properties: pika.BasicProperties) -> dict[str, Any]:
    """The properties that are there."""
    return {name: value for name, value in vars(properties).items() if value is not None}
