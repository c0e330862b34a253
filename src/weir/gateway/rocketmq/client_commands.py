"""Commands that administrators send to clients: print thread stack traces, and verify a message."""

import asyncio
from typing import Any

from weir.gateway.rocketmq.clients import Client
from weir.gateway.rocketmq.context import Services
from weir.gateway.rocketmq.names import resource_of
from weir.model.errors import NotAllowedError, SubscriptionNotFoundError
from weir.model.topics import TopicName
from weir.wire.formats.table import messages_of
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.message import outgoing_of

_READ_BYTES = 4 * 1024 * 1024


class ClientCommands:
    """Sends commands and waits for the answers; raises an error if a client does not answer in time."""

    def __init__(self, services: Services, patience_s: float = 10.0) -> None:
        self._services = services
        self._patience_s = patience_s

    async def stack(self, client_id: str) -> str:
        """Stack traces of the client's threads, as text from the client."""
        client, nonce = self._reached(client_id)
        asked = api.PrintThreadStackTraceCommand(nonce=nonce)
        answer = await self._ask(client, nonce, api.TelemetryCommand(print_thread_stack_trace_command=asked))
        return str(answer.thread_stack_trace.thread_stack_trace)

    async def verify(self, client_id: str, topic: TopicName, offset: int) -> str:
        """Let a consumer process the message at an offset, whatever its state; returns the client's code."""
        client, nonce = self._reached(client_id)
        found = await self._services.broker.load(topic, create=False)
        batches = [] if offset >= found.end_offset else await found.read(offset, _READ_BYTES)
        if not batches or not batches[0].base_offset <= offset < batches[0].end_offset:
            raise NotAllowedError(f"{topic} has no message at offset {offset}")
        messages = messages_of(batches[0])
        index = offset - batches[0].base_offset if len(messages) == batches[0].count else 0
        message = outgoing_of(messages[index], resource_of(topic), partition=topic.partition or 0, offset=offset)
        asked = api.VerifyMessageCommand(nonce=nonce, message=message)
        answer = await self._ask(client, nonce, api.TelemetryCommand(verify_message_command=asked))
        return str(api.Code.Name(answer.status.code))

    def _reached(self, client_id: str) -> tuple[Client, str]:
        client = self._services.clients.find(client_id)
        if client is None or not client.reachable:
            raise SubscriptionNotFoundError(
                f"no client {client_id[:200]!r} is connected to this broker", hint="GET /admin/weir/v1/connections"
            )
        return client, f"{self._services.runtime.rng.getrandbits(128):032x}"

    async def _ask(self, client: Client, nonce: str, command: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        key = (client.id, nonce)
        waiting = self._services.clients.waiting
        waiting[key] = lambda said: None if answer.done() else answer.set_result(said)
        client.tell(command)
        try:
            async with asyncio.timeout(self._patience_s):
                return await answer
        except TimeoutError:
            raise NotAllowedError(
                f"client {client.id!r} did not answer in {self._patience_s:g} s",
                hint="the client may not support the command",
            ) from None
        finally:
            waiting.pop(key, None)
