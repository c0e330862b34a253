"""Kafka's messages: `FetchRequest`, `FetchRequest.FetchTopic` and so on; `messages.pyi` spells them out."""

from weir.wire.kafka.classes import CLASSES, Message

globals().update(CLASSES)

__all__ = ["Message", *CLASSES]  # noqa: PLE0604
