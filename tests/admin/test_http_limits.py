"""What HTTP requests may cost: little until the caller is known, and all of them together one budget."""

import asyncio
from collections.abc import Callable

from weir.rest.http import Response
from weir.rest.routes import Call, Route

MIB = 1024 * 1024


async def size_of(call: Call) -> Response:
    return Response(200, b"%d" % len(call.request.body), "text/plain")


ROUTES = [
    Route("PUT", "/guarded", "For those who are known.", size_of),
    Route("PUT", "/open", "For all.", size_of, open=True),
]


def put(path: str, size: int | None, *headers: str) -> bytes:
    length = "transfer-encoding: chunked" if size is None else f"content-length: {size}"
    return "\r\n".join([f"PUT {path} HTTP/1.1", "host: x", length, *headers, "", ""]).encode()


class Caller:
    """One connection, and what came on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, served) -> "Caller":
        return cls(*await asyncio.open_connection(served.server.host, served.server.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def status(self) -> int:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)
        return int(head.split()[1])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def test_who_is_not_known_is_refused_before_anything_of_its_body_is_read(serve) -> None:
    served = await serve(ROUTES, token="secret")
    caller = await Caller.connect(served)
    await caller.send(put("/guarded", 8 * MIB))
    assert await caller.status() == 401  # and nothing of eight megabytes was sent
    budget = served.server._http.request_budget
    assert budget.used_bytes == 0
    # What it sends all the same is thrown away, and the refusal arrives.
    late = await Caller.connect(served)
    await late.send(put("/guarded", 4 * MIB) + bytes(4 * MIB))
    assert await late.status() == 401
    for each in (caller, late):
        each.writer.close()


async def test_a_small_request_that_is_refused_does_not_cost_its_connection(serve) -> None:
    served = await serve(ROUTES, token="secret")
    caller = await Caller.connect(served)
    await caller.send(put("/guarded", 5) + b"12345")
    assert await caller.status() == 401
    await caller.reader.readuntil(b"}")
    await caller.send(put("/guarded", 5, "authorization: secret") + b"12345")
    assert await caller.status() == 200
    caller.writer.close()


async def test_the_body_of_an_open_route_is_small_since_nobody_knows_who_asks(serve) -> None:
    served = await serve(ROUTES)
    for size, status in ((16 * 1024, 200), (16 * 1024 + 1, 413)):
        caller = await Caller.connect(served)
        await caller.send(put("/open", size) + bytes(size))
        assert await caller.status() == status
        caller.writer.close()
    caller = await Caller.connect(served)
    await caller.send(put("/open", None) + b"10000\r\n" + bytes(65536))
    assert await caller.status() == 413
    caller.writer.close()


async def test_a_head_is_bounded_even_if_it_comes_in_one_piece(serve) -> None:
    served = await serve(ROUTES)
    caller = await Caller.connect(served)
    await caller.send(put("/open", 0, *["x-filler: " + "y" * 1000] * 200))
    assert await caller.status() == 431
    caller.writer.close()


async def test_a_head_that_does_not_come_to_its_end_is_answered_for_that(serve) -> None:
    served = await serve(ROUTES, head_s=1.0)
    caller = await Caller.connect(served)
    await caller.send(b"PUT /open HTTP/1.1\r\nhost:")
    assert await caller.status() == 408
    caller.writer.close()


async def test_bodies_are_received_within_one_budget_and_all_come_to_their_end(serve) -> None:
    served = await serve(ROUTES, max_received_bytes=20 * MIB, max_body_bytes=8 * MIB)
    budget = served.server._http.request_budget
    callers = [await Caller.connect(served) for _ in range(12)]
    for caller in callers:
        await caller.send(put("/guarded", 4 * MIB) + bytes(1000))
    await until(lambda: budget.waiting == 10)
    assert budget.used_bytes == 8 * MIB  # half of the budget is for small ones

    async def finish(caller: Caller) -> int:
        await caller.send(bytes(4 * MIB - 1000))
        return await caller.status()

    assert await asyncio.gather(*map(finish, callers)) == [200] * 12
    assert (budget.used_bytes, budget.waiting) == (0, 0)
    for caller in callers:
        caller.writer.close()


async def test_a_body_of_unknown_size_counts_as_the_largest(serve) -> None:
    served = await serve(ROUTES, max_received_bytes=20 * MIB, max_body_bytes=8 * MIB)
    budget = served.server._http.request_budget
    caller = await Caller.connect(served)
    await caller.send(put("/guarded", None) + b"3\r\nabc\r\n")
    await until(lambda: budget.used_bytes == 8 * MIB)
    await caller.send(b"0\r\n\r\n")
    assert await caller.status() == 200
    await until(lambda: budget.used_bytes == 0)
    gone = await Caller.connect(served)
    await gone.send(put("/guarded", MIB) + b"abc")
    await until(lambda: budget.used_bytes == MIB)
    gone.writer.close()
    await until(lambda: budget.used_bytes == 0)
    caller.writer.close()
