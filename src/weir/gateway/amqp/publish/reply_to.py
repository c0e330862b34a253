"""Direct reply-to: answers go to the channel that asked, without any queue.

A client consumes from `amq.rabbitmq.reply-to` and publishes requests that name it; each request goes out with a
name that stands for the client's channel. What is published to that name on the default exchange, by any
connection of this broker, is delivered to the channel.
"""

from typing import Protocol

from weir.wire.amqp.outgoing import Outgoing

REPLY_TO = "amq.rabbitmq.reply-to"
_PREFIX = f"{REPLY_TO}."


class ReplyConsumer(Protocol):
    def deliver_reply(self, message: Outgoing) -> None: ...


class ReplyConsumers:
    """Those of this broker, by the names that stand for them."""

    def __init__(self) -> None:
        self._by_name: dict[str, ReplyConsumer] = {}

    def add(self, secret: str, consumer: ReplyConsumer) -> str:
        """The name: nobody can guess it who was not told."""
        name = _PREFIX + secret
        self._by_name[name] = consumer
        return name

    def remove(self, name: str) -> None:
        self._by_name.pop(name, None)

    def find(self, name: str) -> ReplyConsumer | None:
        return self._by_name.get(name)


def is_reply_name(name: str) -> bool:
    return name.startswith(_PREFIX)
