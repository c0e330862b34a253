"""A client of RocketMQ 4 learns that its protocol is not served, and so does whoever reads the log."""

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.gateway.rocketmq.session import WHY, answer_to
from weir.testing.processes.up import UpProcess

#: What RocketMQ's client 4.9 asks a name server first: code 105 is GET_ROUTEINFO_BY_TOPIC.
_HEADER = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":401}'
)
_BINARY_HEADER = struct.pack(">hBhiiii", 105, 0, 401, 7, 0, 0, 0)


def frame(header: bytes, form: int = 0) -> bytes:
    return struct.pack(">iB", len(header) + 4, form) + len(header).to_bytes(3) + header


def answered(data: bytes) -> Any:
    length, form = struct.unpack_from(">iB", data)
    header_length = int.from_bytes(data[5:8])
    assert (length, form) == (len(data) - 4, 0)
    return json.loads(data[8 : 8 + header_length])


@pytest.mark.parametrize("request_", [frame(_HEADER), frame(_BINARY_HEADER, 1)], ids=["json", "binary"])
def test_the_answer_is_a_failure_of_that_request(request_: bytes) -> None:
    answer = answer_to(request_)
    assert answer is not None
    assert answered(answer) == answered(answer) | {"code": 1, "flag": 1, "opaque": 7, "remark": WHY}


@given(st.binary(max_size=64))
def test_nothing_else_is_taken_for_remoting(data: bytes) -> None:
    if answer_to(data) is not None:
        assert data[4] in (0, 1)
    assert answer_to(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + data) is None
    assert answer_to(b"GET / HTTP/1.1\r\n" + data) is None


@pytest.mark.process
def test_the_server_answers_and_logs_it(weir: UpProcess, until: Callable[[Callable[[], Any]], Any]) -> None:
    host, _, port = weir.rocketmq.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as client:
        client.sendall(frame(_HEADER))
        found = b""
        while data := client.recv(65536):
            found += data
    assert answered(found)["remark"] == WHY
    assert until(lambda: "refused: the client uses the remoting protocol of RocketMQ 4" in weir.log)
