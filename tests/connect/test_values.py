"""Values by schemas that get versions while they come."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from weir.client.schemas import TopicSchema
from weir.connect.task import Message
from weir.connect.values import Decoder, Encoder, record_of
from weir.model.errors import ConnectorError, NetworkError
from weir.model.topics import TopicName

TOPIC = TopicName.parse("orders")
FIRST: list[tuple[str, Any]] = [("id", "long"), ("name", "string")]
TIME = {"type": "long", "logicalType": "timestamp-micros"}
SECOND = [FIRST[0], ("at", TIME), FIRST[1]]
MOMENT = datetime(2024, 1, 2, tzinfo=UTC)


def versions(kind: str) -> list[TopicSchema]:
    columns = (FIRST, SECOND)
    return [TopicSchema(at, kind, json.dumps(record_of("row", one))) for at, one in enumerate(columns)]


def message(schema: TopicSchema, row: dict[str, object]) -> Message:
    encoder = Encoder(schema, TOPIC)
    return Message("orders", None, encoder.encode(row), 0, encoder.headers)


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_a_column_that_comes_while_values_are_read_is_in_the_rows_with_its_type(kind: str) -> None:
    first, second = versions(kind)
    known, asked = [first], []

    def again() -> list[TopicSchema]:
        asked.append(1)
        return list(known)

    decoder = Decoder(again(), "orders", again)
    old = message(first, {"id": 1, "name": "a"})
    assert decoder.row(old) == {"id": 1, "name": "a"}
    known.append(second)
    new = message(second, {"id": 2, "name": "b", "at": MOMENT})
    assert decoder.row(new) == {"id": 2, "name": "b", "at": MOMENT}
    assert decoder.row(old) == {"id": 1, "name": "a", **({"at": None} if kind == "AVRO" else {})}
    assert dict(decoder.columns).keys() == {"id", "name", "at"}
    assert len(asked) == 2


def test_a_registry_that_does_not_answer_is_no_fault_of_the_value_and_is_asked_again() -> None:
    first, second = versions("AVRO")
    answers: list[list[TopicSchema] | NetworkError] = [NetworkError("away"), [first, second]]

    def again() -> list[TopicSchema]:
        answer = answers.pop(0)
        if isinstance(answer, NetworkError):
            raise answer
        return answer

    decoder = Decoder([first], "orders", again)
    new = message(second, {"id": 2, "name": "b", "at": MOMENT})
    with pytest.raises(NetworkError):
        decoder.row(new)
    assert decoder.row(new) == {"id": 2, "name": "b", "at": MOMENT}


def test_what_nobody_knows_is_asked_for_once() -> None:
    asked = []

    def again() -> list[TopicSchema]:
        asked.append(1)
        return versions("JSON")

    decoder = Decoder(versions("JSON"), "orders", again)
    for _ in range(3):
        assert decoder.row(Message("orders", None, b'{"id": 1, "odd": 2}', 0)) == {"id": 1, "odd": 2}
    assert len(asked) == 1
    with pytest.raises(ConnectorError, match="not as its schema says"):
        decoder.row(Message("orders", None, b"nothing", 0))
