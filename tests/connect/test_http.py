"""HTTP, both ways: pages from a cursor on, once; batches that are tried again, and what is refused for good."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from weir.connect.values import record_of, register
from weir.model.errors import ConnectorError
from weir.model.topics import TopicName

from .conftest import Weir

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("connect")]


class Api:
    """Records by number; what was posted."""

    def __init__(self) -> None:
        self.records = [{"id": number} for number in range(1, 8)]
        self.posted: list[Any] = []
        self.keys: list[str] = []
        self.tokens: set[str | None] = set()
        #: How often the next requests fail.
        self.failing = 0
        self.closing = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.tokens.add(self.headers["Authorization"])
                path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
                if path == "/grows":  # the last page has no cursor, until it is full
                    at = int(query.get("cursor", ["0"])[0])
                    page = api.records[at : at + 5]
                    self._answer(200, {"items": page, "next": str(at + 5) if len(page) == 5 else None})
                    return
                if path == "/packed":
                    if "cursor" in query:
                        self.send_response(204)
                        self.end_headers()
                        return
                    data = gzip.compress(json.dumps(api.records).encode())
                    self.send_response(200)
                    self.send_header("Content-Encoding", "gzip")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                    return
                if path == "/drips":
                    self.send_response(200)
                    self.end_headers()
                    with suppress(OSError):
                        while not api.closing.wait(0.01):
                            self.wfile.write(b" ")
                    return
                after = int(query.get("after", ["0"])[0])
                if path.startswith("/pages/"):  # /pages/ and then /pages/at 3
                    api.tokens.add(self.headers["X-Key"])
                    after = int(unquote(path).removeprefix("/pages/").removeprefix("at ") or 0)
                page = [one for one in api.records if one["id"] > after][:3]
                following = f"at {page[-1]['id']}" if page else None
                self._answer(200, {"data": {"items": page, "next": following}})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", f"{api.url}/items")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if self.path == "/locked":
                    self._answer(401, {"why": "the token is too old"})
                    return
                if api.failing:
                    api.failing -= 1
                    self._answer(503, {"why": "busy"})
                elif any(one["value"] == {"bad": True} for one in body):
                    self._answer(422, {"why": "bad"})
                else:
                    api.posted += body
                    api.keys.append(self.headers["Idempotency-Key"])
                    self._answer(200, {})

            def _answer(self, status: int, said: object) -> None:
                data = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    found = Api()
    yield found
    found.close()


def test_pages_are_asked_for_from_the_cursor_on_and_each_record_comes_once(
    weir: Weir, api: Api, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "t0ken")
    said = {
        "topic": unique,
        "source": {
            "type": "http",
            "url": f"{api.url}/items",
            "records": "data.items",
            "cursor_field": "id",
            "parameter": "after",
            "key": "id",
            "token": {"env": "API_TOKEN"},
        },
    }
    with weir.task(unique, said) as running:
        running.steps(2)
    api.records.append({"id": 8})
    with weir.task(unique, said) as running:
        running.until(lambda: len(weir.values(unique)) == 8)
        running.steps()
    assert [row["id"] for row in weir.values(unique)] == list(range(1, 9))
    assert api.tokens == {"Bearer t0ken"}


def test_the_next_page_is_where_the_answer_says_it_is(
    weir: Weir, api: Api, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "s3cret")
    url, key = f"{api.url}/pages/{{cursor}}", {"X-Key": {"env": "KEY"}}
    about = {"type": "http", "url": url, "records": "data.items", "cursor": "data.next", "headers": key}
    for expected in (7, 8):
        with weir.task(unique, {"topic": unique, "source": about}) as running:
            running.until(lambda wanted=expected: len(weir.values(unique)) == wanted)  # type: ignore[misc]
            running.steps()
        api.records.append({"id": 8})
    assert [row["id"] for row in weir.values(unique)] == list(range(1, 9))
    assert api.tokens == {None, "s3cret"}


def sink(topic: str, api: Api, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "sink": {"type": "http", "url": api.url, "batch": 4, **more}}


def test_messages_are_posted_in_batches_and_again_while_the_other_side_is_busy(
    weir: Weir, api: Api, unique: str
) -> None:
    weir.create(unique)
    weir.fill(unique, [(b"k", f'{{"n": {number}}}'.encode()) for number in range(6)], headers=((b"h", b"v"),))
    api.failing = 2
    with weir.task(unique, sink(unique, api)) as running:
        running.until(lambda: len(api.posted) == 6)
    assert [one["value"]["n"] for one in api.posted] == list(range(6))
    assert api.posted[0] | {"value": 0} == {
        "topic": unique,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_700_000_000_000,
        "key": "k",
        "headers": {"h": "v"},
        "value": 0,
    }
    ids = {key.split("/")[1] for key in api.keys}
    assert len(ids) == 1  # of the topic
    assert api.keys == [f"{unique}/{''.join(ids)}/{unique}-0/{offsets}" for offsets in ("0-3", "4-5")]


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("stopped", [True, False])
def test_a_topic_that_was_created_again_is_posted_from_its_start(
    weir: Weir, api: Api, unique: str, start: str, stopped: bool
) -> None:
    """However many messages it has, and wherever the sink was in the deleted one."""
    said = sink(unique, api, start=start)
    values = [(None, b'{"n": %d}' % number) for number in range(5)]
    weir.create(unique)
    with weir.task(unique, said) as running:
        running.steps()
        weir.fill(unique, values)
        running.until(lambda: len(api.posted) == 5)
        if not stopped:
            weir.create_again(unique)
            weir.fill(unique, values * 2)
            with pytest.raises(ConnectorError, match="was made again"):
                running.steps()
    if stopped:
        weir.create_again(unique)
        weir.fill(unique, values * 2)
    with weir.task(unique, said) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert [one["offset"] for one in api.posted] == [*range(5), *range(10)]
    assert len(set(api.keys)) == len(api.keys)


def test_a_position_that_reaches_the_new_topic_late_is_not_taken_for_its_own(
    weir: Weir, api: Api, unique: str
) -> None:
    values = [(None, b'{"n": %d}' % number) for number in range(5)]
    weir.create(unique)
    weir.fill(unique, values)
    with weir.task(unique, sink(unique, api)) as running:
        running.until(lambda: len(api.posted) == 5)
        weir.create_again(unique)
        weir.fill(unique, values * 2)
        inlet = running.task.inlet  # type: ignore[attr-defined]
        inlet.commit(inlet.positions)  # of the deleted topic
    with weir.task(unique, sink(unique, api)) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert [one["offset"] for one in api.posted] == [*range(5), *range(10)]


def test_the_one_message_that_is_refused_is_a_dead_letter_and_the_others_go_on(
    weir: Weir, api: Api, unique: str
) -> None:
    weir.create(unique)
    weir.fill(unique, [(None, b'{"n": 0}'), (None, b'{"bad": true}'), (None, b'{"n": 2}')])
    with (
        weir.task(unique, sink(unique, api)) as running,
        pytest.raises(ConnectorError, match=r"at offset 1: .*422"),
    ):
        running.steps()
    api.posted.clear()
    with weir.task(unique, sink(unique, api, on_error="dead_letter")) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert [one["value"] for one in api.posted] == [{"n": 0}, {"n": 2}]
    ((_, letter),) = weir.messages(f"{unique}-DLQ")
    assert b"422" in bytes(dict(letter.headers)[b"weir-dead-letter-reason"] or b"")


def test_a_last_page_without_a_cursor_is_carried_as_it_grows(weir: Weir, api: Api, unique: str) -> None:
    about = {"type": "http", "url": f"{api.url}/grows", "records": "items", "cursor": "next"}
    for more in range(4):  # 7 records: a page of five, and two of the next; then 10, 13, 16
        with weir.task(unique, {"topic": unique, "source": about}) as running:
            running.until(lambda: len(weir.values(unique)) >= len(api.records))
            running.steps()
        api.records += [{"id": 8 + more * 3 + at} for at in range(3)]
    assert [row["id"] for row in weir.values(unique)] == list(range(1, 17))


def test_answers_that_are_compressed_or_empty_are_taken(
    weir: Weir, api: Api, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"type": "http", "url": f"{api.url}/packed", "cursor_field": "id"}
    with weir.task(unique, {"topic": unique, "source": about}) as running:
        running.until(lambda: len(weir.values(unique)) == 7)
        running.steps()
    assert len(weir.values(unique)) == 7
    monkeypatch.setattr("weir.connect.connectors.http._MAX_ANSWER_BYTES", 200)
    api.records *= 100
    again = f"{unique}-again"
    told = pytest.raises(ConnectorError, match="answered with more than")
    with weir.task(again, {"topic": again, "source": about}) as running, told:
        running.steps()


def test_an_answer_that_drips_for_ever_ends_by_the_timeout(weir: Weir, api: Api, unique: str) -> None:
    about = {"type": "http", "url": f"{api.url}/drips", "cursor": "next", "timeout": "5s"}
    with (
        weir.task(unique, {"topic": unique, "source": about}) as running,
        pytest.raises(ConnectorError, match="takes longer than timeout"),
    ):
        running.steps()


def test_a_redirect_is_told_and_what_was_posted_is_not_lost(weir: Weir, api: Api, unique: str) -> None:
    weir.create(unique)
    weir.fill(unique, [(None, b'{"n": 0}')])
    told = pytest.raises(ConnectorError, match=rf"answered 302.*{api.url}/items")
    with weir.task(unique, sink(unique, api, url=f"{api.url}/moved", on_error="dead_letter")) as running, told:
        running.steps()
    with weir.task(unique, sink(unique, api)) as running:
        running.until(lambda: len(api.posted) == 1)


def test_what_is_refused_to_everybody_is_no_dead_letter(weir: Weir, api: Api, unique: str) -> None:
    weir.create(unique)
    weir.fill(unique, [(None, b'{"n": 0}'), (None, b'{"n": 1}')])
    told = pytest.raises(ConnectorError, match=r"answered 401: .*too old.*check url, token")
    with weir.task(unique, sink(unique, api, url=f"{api.url}/locked", on_error="dead_letter")) as running, told:
        running.steps()
    with weir.task(unique, sink(unique, api)) as running:
        running.until(lambda: len(api.posted) == 2)


def test_a_value_that_is_not_as_its_schema_says_is_a_dead_letter_or_is_told_with_its_offset(
    weir: Weir, api: Api, unique: str
) -> None:
    weir.create(unique)
    register(weir.place.access, TopicName.parse(unique), "JSON", record_of("row", [("n", "int")]))
    weir.fill(unique, [(None, b'{"n": 0}'), (None, b"no json"), (None, b'{"n": 2}')])
    with weir.task(unique, sink(unique, api)) as running, pytest.raises(ConnectorError, match="at offset 1: "):
        running.steps()
    with weir.task(unique, sink(unique, api, on_error="dead_letter")) as running:
        running.until(lambda: running.task.status.lag == 0)
    assert [one["value"] for one in api.posted] == [{"n": 0}, {"n": 2}]
    assert len(weir.messages(f"{unique}-DLQ")) == 1


@pytest.mark.parametrize("cursor", ["..", "../admin", "a/../../admin", "..\\x", "."])
def test_a_cursor_does_not_lead_to_another_path(weir: Weir, unique: str, cursor: str) -> None:
    url = "http://127.0.0.1:9/pages/{cursor}"
    said = {"topic": unique, "source": {"type": "http", "url": url, "cursor": "next", "start": cursor}}
    with weir.task(unique, said) as running, pytest.raises(ConnectorError, match="would lead to another path"):
        running.steps()
