"""Every command of the protocol survives the way to bytes and back, and stands rightly in the table."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.model.errors import InvariantError
from weir.testing.kinds import rounds
from weir.wire.pulsar import pulsar_api_pb2 as api
from weir.wire.pulsar.commands import COMMANDS, Command, Role, Type, command_of, enveloped
from weir.wire.pulsar.frames import decode_frame, encode_command, encode_with_message, splitter
from weir.wire.pulsar.proto import Message

Make = Callable[[type[Message], Random], Any]
ALL = pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)


@pytest.mark.slow
@ALL
@settings(max_examples=rounds(25), deadline=None)
@given(seed=st.integers(0, 2**32), message=st.binary(max_size=64))
def test_a_command_comes_back_as_it_was(make: Make, command: Command, seed: int, message: bytes) -> None:
    sent = make(command.kind, Random(seed))
    carries = command.number in (Type.SEND, Type.MESSAGE)
    data = b"".join(encode_with_message(sent, [message])) if carries else encode_command(sent)

    (body,) = splitter().feed(data)
    frame = decode_frame(body)

    assert (frame.type, frame.command) == (command.number, sent)
    assert frame.message == (message if carries else None)


@ALL
def test_the_hand_made_envelope_is_what_protobuf_makes(make: Make, command: Command) -> None:
    for seed in range(20):
        sent = make(command.kind, Random(seed))
        base = api.BaseCommand(type=command.number)
        getattr(base, command.field).CopyFrom(sent)
        getattr(base, command.field).SetInParent()
        assert enveloped(sent) == base.SerializeToString()


def test_the_table_holds_the_whole_protocol() -> None:
    fields = {field.number for field in api.BaseCommand.DESCRIPTOR.fields if field.name != "type"}
    assert set(COMMANDS) == fields == set(api.BaseCommand.Type.values())
    assert len(COMMANDS) == 58


def test_either_side_sends_what_is_its_to_send() -> None:
    def names(role: Role) -> list[str]:
        return [command.name for command in COMMANDS.values() if command.sender == role]

    assert names(Role.BOTH) == ["CLOSE_PRODUCER", "CLOSE_CONSUMER", "PING", "PONG"]
    assert "SEND" in names(Role.CLIENT)
    assert "AUTH_RESPONSE" in names(Role.CLIENT)
    assert "MESSAGE" in names(Role.BROKER)
    assert "NEW_TXN_RESPONSE" in names(Role.BROKER)
    assert (len(names(Role.CLIENT)), len(names(Role.BROKER))) == (26, 28)


def test_an_incomplete_command_is_a_bug_of_its_maker() -> None:
    with pytest.raises(InvariantError):
        encode_command(api.CommandError(request_id=1))
    with pytest.raises(InvariantError):
        command_of(api.KeyValue(key="a", value="b"))
