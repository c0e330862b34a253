"""A send that fails, is fenced or times out is never confirmed, and no later send of its client overtakes it.

A real broker over a fake bookie whose answers are held back, failed or fenced.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from weir.gateway.rocketmq.settings import RocketmqSettings, SessionLimits
from weir.model.errors import BookieError, BookieUnavailableError, LedgerFencedError
from weir.model.ledger import Quorum
from weir.runtime.interfaces import Runtime
from weir.stream.settings import StreamSettings
from weir.testing.broker.fake_storage import compose_on_fakes, stage_composition
from weir.testing.rocketmq.client import GrpcLink
from weir.testing.storage.fakes import FakeBookie, FakeBookiePool
from weir.testing.world.world import World, simulate
from weir.wire.rocketmq import rocketmq_pb2 as api
from weir.wire.rocketmq.proto import set_ms

FAILURES = {"failed": BookieUnavailableError("the disk is full"), "fenced": LedgerFencedError("taken over")}
TOPIC, GROUP = api.Resource(name="orders"), api.Resource(name="billing")
OK = api.Code.OK
#: What clients try again.
RETRIED = {api.Code.HA_NOT_AVAILABLE, api.Code.MASTER_PERSISTENCE_TIMEOUT}

with_each = pytest.mark.parametrize("failure", list(FAILURES.values()), ids=list(FAILURES))


class Client:
    """Sends messages to `orders`; several sends may wait for their answers."""

    def __init__(self, link: GrpcLink, runtime: Runtime) -> None:
        self._link = link
        self.clock = runtime.clock

    def begin(self, *bodies: str, deadline: bytes = b"", **system: Any) -> int:
        """One request with these messages: its stream."""
        kind = api.MessageType.FIFO if "message_group" in system else api.MessageType.NORMAL
        system.setdefault("message_type", kind)
        messages = [
            api.Message(
                topic=TOPIC,
                body=body.encode(),
                system_properties=api.SystemProperties(message_id=body, **system),
            )
            for body in bodies
        ]
        request = api.SendMessageRequest(messages=messages)
        return self._link.begin("SendMessage", request, ends=True, deadline=deadline)

    async def status(self, stream: int) -> int:
        """The code of the whole request."""
        answer = await self._link.next(stream, api.SendMessageResponse)
        return int(answer.status.code)

    async def codes(self, *streams: int) -> list[int]:
        """The code of each message, and nothing that only stored messages have for the others."""
        found = []
        for stream in streams:
            answer = await self._link.next(stream, api.SendMessageResponse)
            codes = [entry.status.code for entry in answer.entries]
            assert [bool(entry.message_id) for entry in answer.entries] == [code == OK for code in codes]
            assert (answer.status.code == OK) == (set(codes) == {OK})
            found += codes
        return found

    async def send(self, *bodies: str, **system: Any) -> list[int]:
        return await self.codes(self.begin(*bodies, **system))

    async def send_until_stored(self, body: str, **system: Any) -> None:
        for _ in range(60):
            if await self.send(body, **system) == [OK]:
                return
            await self.clock.sleep(0.5)
        raise AssertionError(f"{body} is refused for 30 s")

    async def stored(self) -> list[str]:
        """Received and acknowledged, until nothing is left."""
        found: list[str] = []
        while True:
            request = api.ReceiveMessageRequest(group=GROUP, batch_size=32)
            request.message_queue.topic.CopyFrom(TOPIC)
            set_ms(request.invisible_duration, 600_000)
            set_ms(request.long_polling_timeout, 2_000)
            answers = await self._link.call("ReceiveMessage", request, 60.0)
            messages = [one.message for one in answers if one.HasField("message")]
            if not messages:
                return found
            found += [bytes(message.body).decode() for message in messages]
            ack = api.AckMessageRequest(group=GROUP, topic=TOPIC)
            for message in messages:
                ack.entries.add(message_id="m", receipt_handle=message.system_properties.receipt_handle)
            await self._link.call("AckMessage", ack, 60.0)


def conversation(
    talk: Callable[[Client, FakeBookie], Coroutine[Any, Any, None]], *, limits: SessionLimits | None = None
) -> None:
    """A topic `orders` with one partition and one stored message, and a client."""

    async def main(runtime: Runtime) -> None:
        how = stage_composition(None, streams=StreamSettings(quorum=Quorum(1, 1, 1)), producer_ids=100)
        async with AsyncExitStack() as stack:
            bookies = FakeBookiePool()
            composed = await compose_on_fakes(runtime, how, stack, bookies=1, pool=bookies)
            server = await composed.serve_rocketmq(
                RocketmqSettings(host="server", limits=limits or SessionLimits())
            )
            client = Client(await GrpcLink.open(runtime, "server", "c", server.port), runtime)
            assert await client.send("m0") == [OK]
            (bookie,) = bookies.bookies.values()
            try:
                await talk(client, bookie)
            finally:  # else the broker would not close
                bookie.failure = None
                bookie.release()

    async def scenario(world: World) -> None:
        await world.node("server").start(main)

    simulate(1, scenario)


@pytest.mark.parametrize("system", [{}, {"message_group": "g"}], ids=["normal", "fifo"])
@with_each
def test_a_send_that_fails_is_not_confirmed_nor_are_those_behind_it(
    failure: BookieError, system: dict[str, str]
) -> None:
    async def talk(client: Client, bookie: FakeBookie) -> None:
        bookie.hold()
        streams = []
        for body in ("m1", "m2", "m3"):  # three entries
            streams.append(client.begin(body, **system))
            await client.clock.sleep(0.5)
        bookie.failure = failure
        bookie.release(failure)
        assert OK not in await client.codes(*streams)
        bookie.failure = None
        for body in ("m1", "m2", "m3"):
            await client.send_until_stored(body, **system)
        stored = await client.stored()
        assert stored[0] == "m0"
        assert stored[-3:] == ["m1", "m2", "m3"]

    conversation(talk)


@with_each
def test_no_message_of_a_request_that_fails_is_confirmed(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie) -> None:
        bookie.hold()
        stream = client.begin("m1", "m2", "m3")
        await client.clock.sleep(0.5)
        bookie.failure = failure
        bookie.release(failure)
        codes = await client.codes(stream)
        assert len(codes) == 3
        assert OK not in codes

    conversation(talk)


@with_each
def test_sends_that_wait_for_the_end_of_a_failure_are_stored_in_their_order(failure: BookieError) -> None:
    async def talk(client: Client, bookie: FakeBookie) -> None:
        bookie.hold()
        streams = [client.begin("m1")]
        await client.clock.sleep(0.5)
        bookie.release(failure)
        for number in range(2, 12):  # while the broker looks for what the failure left behind, and after that
            streams.append(client.begin(f"m{number}"))
            await client.clock.sleep(0.01)
        codes = await client.codes(*streams)
        assert codes[0] != OK
        numbers = [int(body[1:]) for body in await client.stored()]
        assert numbers == sorted(set(numbers))
        assert {number for number, code in enumerate(codes, 1) if code == OK} <= set(numbers)

    conversation(talk)


def test_a_send_that_times_out_is_refused_and_later_ones_follow_in_their_order() -> None:
    async def talk(client: Client, bookie: FakeBookie) -> None:
        bookie.hold()
        streams = [client.begin("m1")]
        await client.clock.sleep(0.5)
        streams.append(client.begin("m2"))
        assert OK not in await client.codes(*streams)
        bookie.release()  # the bookie answers after all
        for body in ("m1", "m2"):
            await client.send_until_stored(body)
        assert (await client.stored())[-2:] == ["m1", "m2"]

    conversation(talk)


@pytest.mark.parametrize("system", [{}, {"message_group": "g"}], ids=["normal", "fifo"])
@with_each
def test_a_send_behind_a_failed_one_is_answered_in_time_while_storage_keeps_failing(
    failure: BookieError, system: dict[str, str]
) -> None:
    async def talk(client: Client, bookie: FakeBookie) -> None:
        bookie.failure = failure
        assert await client.send("m1", **system) != [OK]
        for deadline, limit_s in ((b"3S", 3), (b"1S", 1), (b"", 11)):
            stream = client.begin("m2", deadline=deadline, **system)
            async with asyncio.timeout(limit_s):
                assert await client.status(stream) in RETRIED
        bookie.failure = None
        await client.send_until_stored("m3", **system)
        stored = await client.stored()
        assert "m2" not in stored
        assert stored[-1] == "m3"

    conversation(talk)


@pytest.mark.parametrize(("deadline", "limit_s"), [(b"5S", 5), (b"", 11)], ids=["said", "unsaid"])
def test_a_send_that_the_storage_does_not_answer_is_answered_before_its_client_gives_up(
    deadline: bytes, limit_s: int
) -> None:
    async def talk(client: Client, bookie: FakeBookie) -> None:
        bookie.hold()
        stream = client.begin("m1", deadline=deadline)
        async with asyncio.timeout(limit_s):
            assert await client.status(stream) == api.Code.MASTER_PERSISTENCE_TIMEOUT
        bookie.release()
        assert await client.send("m2") == [OK]
        assert await client.stored() == ["m0", "m1", "m2"]

    conversation(talk)


@pytest.mark.parametrize("what", ["delayed", "transaction"])
@with_each
def test_a_message_that_waits_for_its_moment_or_decision_is_not_confirmed_either(
    failure: BookieError, what: str
) -> None:
    async def talk(client: Client, bookie: FakeBookie) -> None:
        system: dict[str, Any] = {"message_type": api.MessageType.TRANSACTION}
        if what == "delayed":
            system = {"message_type": api.MessageType.DELAY}
            sample = api.SystemProperties()
            set_ms(sample.delivery_timestamp, client.clock.wall_ms() + 30_000)
            system["delivery_timestamp"] = sample.delivery_timestamp
        bookie.failure = failure
        stream = client.begin("m1", **system)
        refused = False
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                refused = OK not in await client.codes(stream)
                assert refused
        bookie.failure = None
        confirmed = ["m2"] if refused or await client.codes(stream) != [OK] else ["m1", "m2"]
        await client.send_until_stored("m2", **system)
        assert await client.stored() == ["m0"]
        if what == "delayed":
            await client.clock.sleep(60)
            assert set(confirmed) <= set(await client.stored()) <= {"m1", "m2"}

    conversation(talk)


@with_each
def test_a_connection_is_read_again_when_its_sends_are_answered(failure: BookieError) -> None:
    """Stored or refused: what is answered no longer counts against the limits of the connection."""

    async def talk(client: Client, bookie: FakeBookie) -> None:
        for _ in range(3):
            bookie.hold()
            streams = [client.begin(f"m{number}") for number in range(10)]
            await client.clock.sleep(0.5)
            bookie.failure = failure
            bookie.release(failure)
            await client.clock.sleep(0.5)
            bookie.failure = None
            await client.codes(*streams)
        for number in range(10):
            await client.send_until_stored(f"m{number}")

    conversation(talk, limits=SessionLimits(max_sends=2, max_send_bytes=20))
