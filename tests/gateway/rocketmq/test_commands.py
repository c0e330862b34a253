"""Commands of the server to its clients: the stacks of their threads, and a message that a consumer shall try."""

import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from rocketmq.grpc_protocol import definition_pb2 as d
from rocketmq.grpc_protocol import service_pb2 as s
from tests.gateway.rocketmq.behaviour.questions import Broker

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process


class Answering(Broker):
    """A client that answers each command."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.tried: list[bytes] = []
        settings = d.Settings(client_type=d.ClientType.PUSH_CONSUMER)
        settings.subscription.group.name = "g"
        self._said.put(s.TelemetryCommand(settings=settings))
        self._stream = self.stub.Telemetry(iter(self._said.get, None), metadata=self.metadata, timeout=60)
        next(self._stream)
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        """Until the test cancels the stream."""
        try:
            self._answer_all()
        except grpc.RpcError as ended:
            if ended.code() is not grpc.StatusCode.CANCELLED:
                raise

    def _answer_all(self) -> None:
        ok = d.Status(code=d.Code.OK)
        for command in self._stream:
            match command.WhichOneof("command"):
                case "print_thread_stack_trace_command":
                    nonce = command.print_thread_stack_trace_command.nonce
                    trace = s.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: waits")
                    self._said.put(s.TelemetryCommand(status=ok, thread_stack_trace=trace))
                case "verify_message_command":
                    self.tried.append(command.verify_message_command.message.body)
                    result = s.VerifyMessageResult(nonce=command.verify_message_command.nonce)
                    self._said.put(s.TelemetryCommand(status=ok, verify_message_result=result))

    def close(self) -> None:
        self._said.put(None)
        self._stream.cancel()
        self._thread.join(60)
        super().close()


@pytest.fixture
def client(weir: UpProcess) -> Iterator[Answering]:
    made = Answering(weir.rocketmq)
    yield made
    made.close()


def post(weir: UpProcess, path: str, body: Any = None) -> Any:
    data = json.dumps({} if body is None else body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{weir.http_url}/admin/weir/v1/clients/{path}", data, headers, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_client_is_asked_what_its_threads_do(weir: UpProcess, client: Answering) -> None:
    assert post(weir, f"{client.client_id}/stack") == {"stack": "main: waits"}


def test_a_consumer_is_given_a_message_to_try(
    weir: UpProcess, client: Answering, clients: Any, name: str, make: Any
) -> None:
    clients.producer(name).send(make(name, b"try me"))
    body = {"topic": f"persistent://public/default/{name}", "offset": 0}
    assert post(weir, f"{client.client_id}/verify", body) == {"code": "OK"}
    assert client.tried == [b"try me"]


def test_a_client_that_is_not_there_is_not_asked(weir: UpProcess) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(weir, "nobody/stack")
    assert refused.value.code == 404
