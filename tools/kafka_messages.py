"""Writes `messages.pyi` out of the table of Kafka's messages: run it after a change of the table."""

from pathlib import Path

from weir.wire import kafka
from weir.wire.kafka.stubs import text


def main() -> None:
    Path(kafka.__file__).with_name("messages.pyi").write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
