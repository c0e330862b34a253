"""Direct reply-to: answers go to the channel that asked, without any queue.

A client consumes from `amq.rabbitmq.reply-to` and publishes requests that name it; each request goes out with a
name that stands for the client's channel. What is published to that name on the default exchange, by any
connection of any broker, is delivered to the channel.
"""

REPLY_TO = "amq.rabbitmq.reply-to"
_PREFIX = f"{REPLY_TO}."


def is_reply_name(name: str) -> bool:
    return name.startswith(_PREFIX)


def reply_name(expected: str) -> str:
    """What clients call whoever waits under this name."""
    return _PREFIX + expected


def expected_name(name: str) -> str:
    """Whom clients mean by it."""
    return name.removeprefix(_PREFIX)
