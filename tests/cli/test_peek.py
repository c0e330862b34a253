"""What `weir peek` makes of the admin REST's answer: one message, or a batch of them."""

from weir.cli.peek import messages_of
from weir.runtime.http_client import HttpAnswer
from weir.wire.pulsar.batch import encode_batch
from weir.wire.pulsar.proto import api

HEADERS = {"x-pulsar-message-id": "7:0", "x-pulsar-publish-time": "2023-11-14T22:13:20Z"}


def test_a_single_message_has_its_properties_in_headers() -> None:
    headers = HEADERS | {
        "x-pulsar-property-a": "b",
        "x-pulsar-property": '{"A": "b"}',
        "x-pulsar-partition-key": "k",
    }
    assert messages_of(HttpAnswer(200, headers, b"hello")) == [
        {
            "id": "7:0",
            "key": "k",
            "payload": "hello",
            "properties": {"A": "b"},
            "published": "2023-11-14T22:13:20.000Z",
        }
    ]


def test_a_batch_is_taken_apart() -> None:
    payload = encode_batch(
        (api.SingleMessageMetadata(partition_key=f"k{at}"), f"m{at}".encode()) for at in range(3)
    )
    found = messages_of(HttpAnswer(200, HEADERS | {"x-pulsar-num-batch-message": "3"}, payload))
    assert [(item["id"], item["key"], item["payload"]) for item in found] == [
        ("7:0:0", "k0", "m0"),
        ("7:0:1", "k1", "m1"),
        ("7:0:2", "k2", "m2"),
    ]


def test_an_answer_without_headers_is_still_shown() -> None:
    (found,) = messages_of(HttpAnswer(200, {}, b"\xff"))
    assert (found["payload_base64"], found["published"]) == ("/w==", "")


def test_an_older_server_gives_properties_one_by_one_and_keys_as_base64() -> None:
    headers = {
        "x-pulsar-property-a": "b",
        "x-pulsar-partition-key": "AP8=",
        "x-pulsar-partition-key-b64-encoded": "true",
    }
    (found,) = messages_of(HttpAnswer(200, headers, b""))
    assert (found["properties"], found["key_base64"]) == ({"a": "b"}, "AP8=")
