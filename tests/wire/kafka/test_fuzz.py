"""Mutated and random bytes for every API in every version: a message or a WireError, whatever comes.

`tests/wire/test_fuzz.py` has the many rounds over all of them; here each has its few.
"""

from contextlib import suppress
from random import Random

import pytest

from weir.model.errors import WireError
from weir.testing.codecs.fuzzing import mutate
from weir.testing.codecs.kafka_samples import in_version, sample_message
from weir.wire.kafka import codec, frames
from weir.wire.kafka import codec as consumer
from weir.wire.kafka.api_table import ApiKey
from weir.wire.kafka.schema.table import LAYOUTS

ROUNDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_mutated_messages_of_every_version(name: str) -> None:
    dice = Random(f"kafka {name}")
    layout = LAYOUTS[name]
    for version in layout.versions:
        samples = [
            codec.encode_data(name, version, in_version(layout, version, sample_message(layout, dice)))
            for _ in range(4)
        ]
        for _ in range(ROUNDS):
            data = mutate(dice.choice(samples), dice, dice.choice(samples))
            with suppress(WireError):
                again(name, version, codec.decode_data(name, version, data))


def again(name: str, version: int, message: codec.Message) -> None:
    """Whatever was read can be written, and reads as the same."""
    data = codec.encode_data(name, version, message)
    assert codec.decode_data(name, version, data) == message


@pytest.mark.parametrize("name", LAYOUTS)
def test_random_bytes_for_every_version(name: str) -> None:
    dice = Random(f"kafka random {name}")
    for version in LAYOUTS[name].versions:
        for size in range(40):
            with suppress(WireError):
                again(name, version, codec.decode_data(name, version, dice.randbytes(size)))


def test_random_headers_and_subscriptions() -> None:
    dice = Random("kafka headers")
    for _ in range(5_000):
        data = dice.randbytes(dice.randrange(30))
        key = dice.choice(list(ApiKey))
        for start in (b"", key.to_bytes(2, "big")):
            with suppress(WireError):
                frames.decode_request_header(start + data)
        with suppress(WireError):
            frames.decode_response_header(key, dice.randrange(20), data)
        for start in (b"", b"\0\1"):
            with suppress(WireError):
                consumer.decode_subscription(start + data)
            with suppress(WireError):
                consumer.decode_assignment(start + data)
