"""Methods: each comes back as it was sent, and arguments that are none say so with the right code."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.model.errors import AmqpError
from weir.testing.codecs.amqp_strategies import methods_of
from weir.wire.amqp.frames import ReplyCode, reply_text
from weir.wire.amqp.method_codec import decode_any, encode_any
from weir.wire.amqp.methods import (
    METHODS,
    Method,
    basic,
    connection,
    decode_method,
    encode_method,
    exchange,
    queue,
)
from weir.wire.amqp.tables import Table

by_name = pytest.mark.parametrize("cls", METHODS.values(), ids=lambda cls: cls.name)


@by_name
@settings(max_examples=15)
@given(data=st.data())
def test_a_method_comes_back_and_no_other_length_of_it_does(cls: type[Method], data: st.DataObject) -> None:
    method = data.draw(methods_of(cls))
    frame = encode_method(7, method)
    assert (frame[0], frame[1:3], int.from_bytes(frame[3:7], "big"), frame[-1]) == (
        1,
        b"\x00\x07",
        len(frame) - 8,
        0xCE,
    )
    payload = frame[7:-1]
    assert payload == encode_any(method)
    assert decode_method(payload) == decode_any(cls, payload) == method
    for wrong in (payload[: data.draw(st.integers(0, len(payload) - 1))], payload + b"\0"):
        with pytest.raises(AmqpError) as refused:
            decode_method(wrong)
        assert refused.value.code in (ReplyCode.FRAME_ERROR, ReplyCode.SYNTAX_ERROR)


def test_every_class_of_the_protocol_is_there() -> None:
    assert len(METHODS) == 66
    assert {cls.name.split(".")[0] for cls in METHODS.values()} == {
        "access",
        "basic",
        "channel",
        "confirm",
        "connection",
        "exchange",
        "queue",
        "tx",
    }
    assert (basic.RecoverAsync.name, connection.UpdateSecretOk.name) == (
        "basic.recover-async",
        "connection.update-secret-ok",
    )
    assert [cls.name for cls in METHODS.values() if cls.has_content] == [
        "basic.publish",
        "basic.return",
        "basic.deliver",
        "basic.get-ok",
    ]


def test_bits_share_an_octet_and_start_anew_behind_anything_else() -> None:
    declare = exchange.Declare("e", "topic", durable=True, no_wait=True)
    assert encode_method(1, declare)[7:-1] == b"\x00\x28\x00\x0a\x00\x00\x01e\x05topic\x12\x00\x00\x00\x00"
    # Bits that stand for nothing are read past, as reserved arguments are.
    ticket = bytearray(encode_method(1, basic.Get("q", True))[7:-1])
    ticket[4:6], ticket[-1] = b"\x12\x34", 0xFF
    assert decode_method(ticket) == basic.Get("q", True)
    assert decode_method(encode_method(0, connection.Open("v"))[7:-2] + b"\x01") == connection.Open("v")


def test_unknown_methods_are_not_implemented() -> None:
    for ids in (b"\x00\x3c\x00\x79", b"\x00\x46\x00\x0a"):
        with pytest.raises(AmqpError) as refused:
            decode_method(ids)
        assert (refused.value.code, refused.value.method_id) == (ReplyCode.NOT_IMPLEMENTED, ids[3])


def test_text_that_is_none_and_tables_that_are_none_name_the_method() -> None:
    for name in (b"\x01\xff\x00\x00", b"\xff\x00\x00\x00"):
        with pytest.raises(AmqpError) as refused:
            decode_method(b"\x00\x3c\x00\x28\x00\x00" + name)
        assert (refused.value.code, refused.value.class_id, refused.value.method_id) == (501, 60, 40)
    declare = encode_method(1, queue.Declare("q", arguments=Table.of({"x-max-length": 5})))[7:-1]
    with pytest.raises(AmqpError) as refused:
        decode_method(declare.replace(b"I", b"?"))
    assert (refused.value.code, refused.value.class_id, refused.value.method_id) == (502, 50, 10)


@pytest.mark.parametrize(
    "method",
    [
        queue.Declare("q" * 256),
        queue.Declare("\ud800"),
        basic.Ack(1 << 64),
        basic.Ack(-1),
        connection.Tune(1 << 16),
        connection.Secure(None),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_what_cannot_be_written_is_an_error_of_ours(method: Method) -> None:
    with pytest.raises(AmqpError) as refused:
        encode_method(1, method)
    assert refused.value.code == ReplyCode.INTERNAL_ERROR


def test_what_a_close_says_fits_into_a_short_string() -> None:
    assert reply_text(ReplyCode.NOT_FOUND, "no queue 'q' in vhost '/'") == "NOT_FOUND - no queue 'q' in vhost '/'"
    text = reply_text(ReplyCode.NOT_FOUND, "é" * 200)
    assert 254 <= len(text.encode()) <= 255
    assert decode_method(encode_method(1, connection.Close(404, text))[7:-1]) == connection.Close(404, text)
    soft = [code for code in ReplyCode if code.ends_channel_only]
    assert soft == [311, 312, 313, 403, 404, 405, 406]
