"""What the Pulsar codec's tests share: messages of any kind from one seed, and a broker small enough to read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random
from typing import Any

import pytest

from weir.wire.pulsar import fast_frames
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import Type
from weir.wire.pulsar.frames import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Frame,
    decode_frame,
    encode_command,
    refusal,
    splitter,
)
from weir.wire.pulsar.ids import MessageId, id_to_wire
from weir.wire.pulsar.message import broker_entry_head, split_message
from weir.wire.pulsar.proto import Message

LEDGER = 7


class TinyBroker:
    """One topic in memory, just enough for the official client; keeps every byte that clients send."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.received: list[bytearray] = []  # per connection
        self.url = ""
        #: Command numbers that are refused, and with which code.
        self.refused: dict[int, Any] = {}
        self.with_broker_entry = False
        #: What a delivery says besides its position: redelivery count, the unacknowledged of a batch.
        self.redelivery: dict[str, Any] | None = None

    def frames(self) -> Iterator[Frame]:
        """Everything that clients sent, decoded again from the bytes."""
        for data in self.received:
            for body in splitter().feed(bytes(data)):
                yield decode_frame(body)

    def sent(self, kind: type[Message]) -> list[Any]:
        return [frame.command for frame in self.frames() if isinstance(frame.command, kind)]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        log = bytearray()
        self.received.append(log)
        split = splitter()
        try:
            while data := await reader.read(65536):
                log += data
                for body in split.feed(data):
                    writer.writelines(self.answer(decode_frame(body)))
        except ConnectionError:
            pass
        finally:
            writer.close()

    def answer(self, frame: Frame) -> list[bytes]:
        command: Any = frame.command
        if frame.type in self.refused:
            no = refusal(frame, self.refused[frame.type], "refused by the test")
            assert no is not None
            return [no]
        match frame.type:
            case Type.CONNECT:
                features = api.FeatureFlags(supports_broker_entry_metadata=True)
                return one(
                    api.CommandConnected(
                        server_version="tiny",
                        protocol_version=min(command.protocol_version, PROTOCOL_VERSION),
                        max_message_size=MAX_MESSAGE_BYTES,
                        feature_flags=features,
                    )
                )
            case Type.PARTITIONED_METADATA:
                return one(
                    api.CommandPartitionedTopicMetadataResponse(
                        request_id=command.request_id,
                        partitions=0,
                        response=api.CommandPartitionedTopicMetadataResponse.Success,
                    )
                )
            case Type.LOOKUP:
                return one(
                    api.CommandLookupTopicResponse(
                        request_id=command.request_id,
                        response=api.CommandLookupTopicResponse.Connect,
                        brokerServiceUrl=self.url,
                        authoritative=True,
                    )
                )
            case Type.PRODUCER:
                name = command.producer_name or "tiny-0"
                return one(api.CommandProducerSuccess(request_id=command.request_id, producer_name=name))
            case Type.SEND:
                assert frame.message is not None
                split_message(frame.message)
                self.stored.append(bytes(frame.message))
                receipts = fast_frames.Receipts(command.producer_id)
                return [
                    receipts.frame(command.sequence_id, command.highest_sequence_id, LEDGER, len(self.stored) - 1)
                ]
            case Type.FLOW:
                return self.deliver(command.consumer_id)
            case Type.GET_LAST_MESSAGE_ID:
                last = id_to_wire(MessageId(LEDGER, len(self.stored) - 1))
                return one(
                    api.CommandGetLastMessageIdResponse(request_id=command.request_id, last_message_id=last)
                )
            case Type.GET_TOPICS_OF_NAMESPACE:
                return one(
                    api.CommandGetTopicsOfNamespaceResponse(
                        request_id=command.request_id, topics=["persistent://public/default/found"]
                    )
                )
            case Type.ACK:
                if not command.HasField("request_id"):
                    return []
                return [fast_frames.ack_response(command.consumer_id, command.request_id)]
            case Type.SUBSCRIBE | Type.CLOSE_PRODUCER | Type.CLOSE_CONSUMER | Type.UNSUBSCRIBE | Type.SEEK:
                return one(api.CommandSuccess(request_id=command.request_id))
            case Type.PING:
                return [fast_frames.PONG]
        refused = refusal(frame, api.ServerError.NotAllowedError, "the tiny broker knows no better")
        return [] if refused is None else [refused]

    def deliver(self, consumer_id: int) -> list[bytes]:
        """All that is stored, once."""
        deliveries = fast_frames.Deliveries(consumer_id)
        stored, self.stored = self.stored, []
        out = []
        for entry, message in enumerate(stored):
            if self.with_broker_entry:
                message = broker_entry_head(1_700_000_000_000, 1000 + entry) + message
            if self.redelivery is None:
                out.append(deliveries.head(LEDGER, entry, len(message)))
            else:
                out.append(deliveries.again(LEDGER, entry, len(message), **self.redelivery))
            out.append(message)
        return out


def one(command: Message) -> list[bytes]:
    return [encode_command(command)]


@pytest.fixture
async def broker() -> AsyncIterator[TinyBroker]:
    tiny = TinyBroker()
    server = await asyncio.start_server(tiny.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    tiny.url = f"pulsar://{host}:{port}"
    async with server:
        yield tiny


def _text(dice: Random) -> str:
    return "".join(dice.choice("abz/-:·é漢🜁 ") for _ in range(dice.randrange(12)))


#: By the C++ type that a descriptor names: (u)int32/64, double, bool, enum, string or bytes.
_SCALARS: dict[int, Callable[[Random, Any], Any]] = {
    1: lambda dice, _: dice.choice((0, 1, -1, 2**31 - 1, -(2**31))),
    2: lambda dice, _: dice.choice((0, 1, -1, 2**63 - 1, -(2**63), dice.randrange(2**40))),
    3: lambda dice, _: dice.choice((0, 127, 128, 2**32 - 1)),
    4: lambda dice, _: dice.choice((0, 1, 127, 128, 2**63, 2**64 - 1, dice.randrange(2**40))),
    5: lambda dice, _: dice.choice((0.0, 1.5, -1e300)),
    7: lambda dice, _: dice.random() < 0.5,
    8: lambda dice, field: dice.choice(sorted(field.enum_type.values_by_number)),
    9: lambda dice, field: dice.randbytes(dice.randrange(20)) if field.type == 12 else _text(dice),
}


def any_message(kind: type[Message], dice: Random, depth: int = 0) -> Any:
    """A message with every required field and some of the others, any value in each."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if not field.is_required and (dice.random() < 0.4 or depth > 3):
            continue
        many = range(dice.randrange(4)) if field.is_repeated else range(1)
        for _ in many:
            if field.message_type is not None:
                value = any_message(getattr(api, field.message_type.name), dice, depth + 1)
                getattr(message, field.name).add().CopyFrom(value) if field.is_repeated else getattr(
                    message, field.name
                ).CopyFrom(value)
            elif field.is_repeated:
                getattr(message, field.name).append(_SCALARS[field.cpp_type](dice, field))  # type: ignore[attr-defined]
            else:
                setattr(message, field.name, _SCALARS[field.cpp_type](dice, field))  # type: ignore[attr-defined]
    return message


@pytest.fixture(scope="session")
def make() -> Callable[[type[Message], Random], Any]:
    """`make(kind, dice)`: any message of that kind."""
    return any_message
