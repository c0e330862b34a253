"""Clients of RocketMQ's protocol: producers, also of half messages, who answer check-backs; and consumers."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from weir.model.errors import WeirError
from weir.runtime.interfaces import Runtime
from weir.testing.operations import FINAL
from weir.testing.rocketmq.client import GrpcLink
from weir.testing.rocketmq.history import RocketmqHistory
from weir.testing.rocketmq.history import RocketmqOpKind as Kind
from weir.testing.rocketmq.plan import RocketmqPlan
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.proto import set_ms

TOPIC, GROUP = "orders", "billing"
_TOPIC, _GROUP = api.Resource(name=TOPIC), api.Resource(name=GROUP)
_PAUSE_S = 0.1
_INVISIBLE_MS = 1_500
_FAILURES = (WeirError, TimeoutError)


class Worker:
    """On a node of its own: it comes to any broker, and to another when its connection breaks."""

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        brokers: Sequence[str],
        plan: RocketmqPlan,
        *,
        rng: Random,
        story: RocketmqHistory,
    ) -> None:
        self.name = name
        self._runtime = runtime
        self._brokers = brokers
        self._plan = plan
        self._rng = rng
        self._story = story
        self._link: GrpcLink | None = None

    async def call(self, method: str, request: Any, wait_s: float = 5.0) -> list[Any]:
        try:
            if self._link is None:
                self._link = await GrpcLink.open(self._runtime, self._rng.choice(self._brokers), self.name)
            return await self._link.call(method, request, wait_s)
        except _FAILURES:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def pause(self) -> None:
        await self._runtime.clock.sleep(self._rng.uniform(0, 2 * _PAUSE_S))

    # --- producing ----------------------------------------------------------------------------------------------

    async def produce(self, numbers: list[int]) -> None:
        """Each message once, whatever comes of it."""
        for _ in range(self._plan.messages):
            await self.pause()
            numbers[0] += 1
            try:
                if self._rng.random() < self._plan.halves:
                    await self._transact(numbers[0])
                else:
                    await self._recorded(Kind.SEND, numbers[0], "SendMessage", _send(numbers[0]))
            except _FAILURES:
                continue

    async def _transact(self, number: int) -> None:
        answer = await self._recorded(Kind.PREPARE, number, "SendMessage", _send(number, half=True))
        if self._rng.random() < 0.3:
            return  # somebody will be asked
        commits = self._rng.random() < 0.7
        await self._decide(number, answer.entries[0].transaction_id, commits=commits)

    async def _decide(self, number: int, transaction: str, *, commits: bool) -> None:
        resolution = api.TransactionResolution.COMMIT if commits else api.TransactionResolution.ROLLBACK
        end = api.EndTransactionRequest(topic=_TOPIC, transaction_id=transaction, resolution=resolution)
        await self._recorded(Kind.COMMIT if commits else Kind.ROLL_BACK, number, "EndTransaction", end)

    async def _recorded(self, kind: Kind, number: int, method: str, request: Any) -> Any:
        pending = self._story.begin(self.name, kind, number=number)
        try:
            (answer,) = await self.call(method, request)
            if answer.status.code != api.Code.OK:
                raise WeirError(f"{answer.status.code}: {answer.status.message}")
        except _FAILURES as failure:
            pending.failed(failure)
            raise
        pending.ok()
        return answer

    async def answer_checks(self) -> None:
        """Commit what it is asked about, for ever."""
        settings = api.Settings(client_type=api.ClientType.PRODUCER)
        settings.publishing.topics.add(name=TOPIC)
        while True:
            await self.pause()
            link: GrpcLink | None = None
            try:
                link = await GrpcLink.open(self._runtime, self._rng.choice(self._brokers), self.name)
                stream = link.begin("Telemetry", api.TelemetryCommand(settings=settings))
                async with asyncio.timeout(self._rng.uniform(1.0, 5.0)):
                    while True:
                        command = await link.next(stream, api.TelemetryCommand)
                        if command.HasField("recover_orphaned_transaction_command"):
                            asked = command.recover_orphaned_transaction_command
                            await self._decide(int(asked.message.body), asked.transaction_id, commits=True)
            except _FAILURES:
                continue
            finally:
                if link is not None:
                    link.close()

    # --- consuming ----------------------------------------------------------------------------------------------

    async def consume(self) -> None:
        while True:
            await self.pause()
            try:
                for message in await self.receive(_INVISIBLE_MS, 1_000):
                    self._story.note(self.name, Kind.DELIVER, number=int(message.body))
                    if self._rng.random() < self._plan.acks:
                        await self._recorded(Kind.ACK, int(message.body), "AckMessage", _ack(message))
            except _FAILURES:
                continue

    async def receive(self, invisible_ms: int, wait_ms: int) -> list[Any]:
        request = api.ReceiveMessageRequest(group=_GROUP, batch_size=self._rng.choice((1, 4, 16)))
        request.message_queue.topic.CopyFrom(_TOPIC)
        set_ms(request.invisible_duration, invisible_ms)
        set_ms(request.long_polling_timeout, wait_ms)
        answers = await self.call("ReceiveMessage", request)
        status = answers[0].status
        if status.code not in (api.Code.OK, api.Code.MESSAGE_NOT_FOUND):
            raise WeirError(f"{status.code}: {status.message}")
        return [one.message for one in answers if one.HasField("message")]

    # --- the end ------------------------------------------------------------------------------------------------

    async def drain(self, kind: Kind, quiet_s: float) -> None:
        """Receive and acknowledge everything, until nothing came for so long."""
        clock = self._runtime.clock
        quiet_from = clock.monotonic()
        while clock.monotonic() - quiet_from < quiet_s:
            try:
                for message in await self.receive(60_000, 500):
                    quiet_from = clock.monotonic()
                    await self._acknowledged(message)
                    self._story.note(FINAL, kind, number=int(message.body))
            except _FAILURES:
                quiet_from = clock.monotonic()
                await clock.sleep(_PAUSE_S)

    async def _acknowledged(self, message: Any) -> None:
        (answer,) = await self.call("AckMessage", _ack(message))
        if answer.status.code != api.Code.OK:
            raise WeirError(answer.status.message)


def _send(number: int, *, half: bool = False) -> Any:
    kind = api.MessageType.TRANSACTION if half else api.MessageType.NORMAL
    system = api.SystemProperties(message_id=f"m{number}", message_type=kind)
    return api.SendMessageRequest(
        messages=[api.Message(topic=_TOPIC, body=b"%d" % number, system_properties=system)]
    )


def _ack(message: Any) -> Any:
    request = api.AckMessageRequest(group=_GROUP, topic=_TOPIC)
    request.entries.add(message_id="m", receipt_handle=message.system_properties.receipt_handle)
    return request
