"""The admin server: routes, decoding, statuses, and what it does with requests that are none."""

import asyncio

import msgspec
import pytest

from weir.model.errors import InvalidNameError, NotAuthorisedError, NotOwnerError
from weir.rest.routes import Call, Query, Route


class Thing(msgspec.Struct):
    name: str
    size: int = 0


async def echo(call: Call) -> dict[str, object]:
    return {"path": dict(call.path), "query": dict(call.query), "role": call.role}


async def store(call: Call) -> None:
    assert isinstance(call.body, Thing)


async def refuse(call: Call) -> None:
    raise NotAuthorisedError("you may not", hint="ask somebody")


async def misname(call: Call) -> None:
    raise InvalidNameError("no such name")


async def elsewhere(call: Call) -> None:
    raise NotOwnerError("not here", listeners={"http": call.query["at"]})


async def much(call: Call) -> list[str]:
    return ["x" * 1_000_000] * 40


async def crash(call: Call) -> None:
    raise ZeroDivisionError


ROUTES = [
    Route("GET", "/things/{name}", "One.", echo, answer=dict, query=(Query("deep", bool, "all of it", False),)),
    Route("PUT", "/things/{name}", "Set.", store, body=Thing),
    Route("POST", "/refuse", "No.", refuse),
    Route("POST", "/misname", "No.", misname),
    Route("POST", "/crash", "No.", crash),
    Route("GET", "/moved/{name}", "No.", elsewhere, query=(Query("at", str, "where", ""),)),
    Route("GET", "/much", "A lot.", much, answer=list[str]),
    Route("GET", "/things/all", "Every one.", echo, answer=dict),
]


async def large(call: Call) -> list[str]:
    return ["x" * 1_000_000] * 20


LARGE = [Route("GET", "/large", "Just not too much.", large, answer=list[str])]


async def test_a_route_gets_its_parameters_decoded(serve) -> None:
    served = await serve(ROUTES, role="alice")
    status, told = await served.call("GET", "/things/a%2Fb%20c?deep=true")
    assert (status, told) == (200, {"path": {"name": "a/b c"}, "query": {"deep": True}, "role": "alice"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/things/x", {"name": "n", "size": 3}, 204),
        ("PUT", "/things/x", {"size": 3}, 400),
        ("PUT", "/things/x", {"name": 7}, 400),
        ("PUT", "/things/x", None, 400),
        ("GET", "/things/x?deep=perhaps", None, 400),
        ("GET", "/things/%ff", None, 400),
        ("GET", "/nowhere", None, 404),
        ("GET", "/things", None, 404),
        ("DELETE", "/things/x", None, 405),
        ("POST", "/refuse", None, 403),
        ("POST", "/misname", None, 412),
        ("POST", "/crash", None, 500),
        ("GET", "/moved/x", None, 503),
        ("GET", "/much", None, 413),
        ("PUT", "/things/all", {"name": "n"}, 204),
        ("PUT", "/things/x", {"name": "n", "size": 3.0}, 204),
        ("PUT", "/things/x", {"name": "n", "size": 3.5}, 400),
        ("GET", "/things/", None, 404),
    ],
)
async def test_each_outcome_has_its_status(serve, method: str, path: str, body: object, status: int) -> None:
    served = await serve(ROUTES)
    got, told = await served.call(method, path, body)
    assert got == status
    if status >= 400:
        assert told["reason"]
        assert "Traceback" not in told["reason"]


async def test_the_openapi_document_lists_every_route(serve) -> None:
    served = await serve(ROUTES)
    status, told = await served.call("GET", "/openapi.json")
    assert status == 200
    assert {(verb, path) for path, verbs in told["paths"].items() for verb in verbs} == {
        (route.method.lower(), route.path) for route in ROUTES
    }


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"garbage\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 100_000 + b"\r\n", b"431"),
        (b"PUT /things/x HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n", b"413"),
        (b"PUT /things/x HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", b"400"),
        (b"PUT /things/x HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabc", b"400"),
    ],
)
async def test_a_request_that_is_none_is_refused_and_others_are_served(serve, data: bytes, status: bytes) -> None:
    served = await serve(ROUTES)
    try:
        answer = await served.raw(data)
    except ConnectionError:
        answer = b""  # closed while it was still sending
    assert answer.split(b" ")[1:2] in ([status], [])
    assert (await served.call("GET", "/things/x"))[0] == 200


async def test_requests_follow_each_other_on_one_connection(serve) -> None:
    served = await serve(ROUTES)
    answer = await served.raw(b"GET /things/x HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    assert answer.count(b"HTTP/1.1 200") == 3


async def test_a_head_request_gets_no_body(serve) -> None:
    served = await serve(ROUTES)
    answer = await served.raw(b"HEAD /things/x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


async def test_an_idle_connection_does_not_keep_the_server_from_closing(serve) -> None:
    served = await serve(ROUTES)
    reader, writer = await asyncio.open_connection(served.server.host, served.server.port)
    writer.write(b"GET /things/x HTTP/1.1\r\nhost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await served.server.close()
    writer.close()


async def test_connections_beyond_the_limit_are_turned_away(serve) -> None:
    served = await serve(ROUTES, max_connections=1)
    _, first = await asyncio.open_connection(served.server.host, served.server.port)
    first.write(b"GET /thin")
    await first.drain()
    with pytest.raises((ConnectionError, IndexError)):
        await served.call("GET", "/things/x")
    first.close()


@pytest.mark.slow
async def test_a_request_that_drips_has_its_time_as_a_whole(serve) -> None:
    served = await serve(ROUTES, idle_s=0.5)
    reader, writer = await asyncio.open_connection(served.server.host, served.server.port)
    writer.write(b"PUT /things/x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
    async with asyncio.timeout(30):
        while not reader.at_eof():  # a byte every now and then does not keep it
            try:
                writer.write(b" ")
                answer = await asyncio.wait_for(reader.read(1000), 0.05)
                assert answer.startswith(b"HTTP/1.1 408") or not answer
            except (TimeoutError, ConnectionError):
                if writer.is_closing():
                    break
    writer.close()


async def test_an_answer_that_nobody_reads_does_not_keep_its_connection(serve) -> None:
    served = await serve(LARGE, idle_s=0.2)
    _, writer = await asyncio.open_connection(served.server.host, served.server.port, limit=1)
    writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
    sessions = served.server._http._server
    async with asyncio.timeout(30):
        while not sessions.sessions:
            await asyncio.sleep(0.01)
        while sessions.sessions:
            await asyncio.sleep(0.01)
    writer.close()


async def test_who_asks_for_a_topic_of_another_broker_is_sent_there(serve) -> None:
    served = await serve(ROUTES)
    target = "/moved/a%2Fb?at=http://other:8080/"
    answer = await served.raw(f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    head = answer.decode().lower().split("\r\n")
    assert head[0].startswith("http/1.1 307")
    assert f"location: http://other:8080{target.lower()}&authoritative=true" in head


async def test_a_word_in_a_path_comes_before_a_parameter(serve) -> None:
    served = await serve(ROUTES)
    assert (await served.call("GET", "/things/all"))[1]["path"] == {}
    assert (await served.call("GET", "/things/every"))[1]["path"] == {"name": "every"}
