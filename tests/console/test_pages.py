"""What pages show, over real HTTP."""

import pulsar
import pytest
from tests.console.conftest import Visitor


def test_the_overview_shows_rates_plots_and_the_disk(visitor: Visitor) -> None:
    page = visitor.get("/")
    assert page.status == 200
    assert "Messages per second" in page.words
    assert "Disk free" in page.words
    assert page.text.count('<svg class="plot"') == 3


def test_topics_are_found_by_a_part_of_their_name_page_by_page(visitor: Visitor, unique: str) -> None:
    for number in range(60):
        visitor.weir.do("PUT", f"persistent/public/default/{unique}-{number:02}")
    first = visitor.get(f"/console/topics?namespace=public/default&q={unique.upper()}")
    assert first.text.count(f">{unique}-") == 50
    follow = first.text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    second = visitor.get(follow)
    assert second.text.count(f">{unique}-") == 10
    assert 'rel="next"' not in second.text


def test_topics_are_sorted_by_what_is_in_them_whatever_their_names(
    visitor: Visitor, client: pulsar.Client, unique: str
) -> None:
    sizes = {"a": 10, "b": 3000, "c": 200}
    for number in range(55):  # more than a page of them, and larger names
        visitor.weir.do("PUT", f"persistent/public/default/{unique}-{number:02}")
    for name, size in sizes.items():
        client.create_producer(f"{unique}-{name}").send(b"x" * size)
    page = visitor.get(f"/console/topics?namespace=public/default&q={unique}&sort=size")
    shown = [part.split("<")[0] for part in page.text.split(f">{unique}-")[1:]]
    assert shown[:3] == ["b", "c", "a"]
    assert "idle ones are not listed" in page.words


def test_a_search_that_a_script_asks_for_is_answered_with_the_rows_alone(visitor: Visitor) -> None:
    page = visitor.get("/console/topics?q=nothing-has-this", hx_request="true")
    assert page.status == 200
    assert "<html" not in page.text
    assert "No topic here has “nothing-has-this” in its name" in page.words


def test_a_namespace_that_is_not_there_is_said_not_to_be(visitor: Visitor) -> None:
    page = visitor.get("/console/topics?namespace=no/such")
    assert page.status == 404
    assert "there is no namespace no/such" in page.words


@pytest.mark.parametrize("file", ["console.css", "console.js", "htmx.min.js", "sse.min.js", "weir.svg"])
def test_files_come_with_their_type_and_are_not_sent_twice(visitor: Visitor, file: str) -> None:
    page = visitor.get(f"/console/static/{file}")
    assert page.status == 200
    again = visitor.get(f"/console/static/{file}", if_none_match=page.headers["etag"])
    assert (again.status, again.text) == (304, "")


def test_no_other_file_is_served(visitor: Visitor) -> None:
    for path in ("app.py", "..%2Fapp.py", "%2Fetc%2Fpasswd", "console.css%00"):
        assert visitor.get(f"/console/static/{path}").status == 404


def test_all_of_it_is_smaller_than_300_kb() -> None:
    from importlib.resources import files

    folder = files("weir.console")
    sizes = [
        len(file.read_bytes()) for part in ("static", "templates") for file in folder.joinpath(part).iterdir()
    ]
    assert sum(sizes) < 300_000


def test_the_console_can_be_turned_off(start_weir) -> None:  # type: ignore[no-untyped-def]
    off = start_weir("console.enabled=false")
    assert Visitor(off).get("/").status == 404
    assert off.ask("GET", "/metrics").status == 200


def test_the_api_s_document_leaves_pages_out(visitor: Visitor) -> None:
    assert not [
        path for path in visitor.weir.do("GET", "/openapi.json")["paths"] if "console" in path or path == "/"
    ]


def test_what_happens_is_pushed(visitor: Visitor, client: pulsar.Client, unique: str) -> None:
    import http.client

    address = visitor.weir.up.addresses["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    connection.request("GET", "/console/live/overview", headers={"accept": "text/event-stream"})
    response = connection.getresponse()
    assert response.headers["content-type"] == "text/event-stream"
    client.create_producer(f"public/default/{unique}").send(b"x")
    told = b""
    while unique.encode() not in told:
        line = response.readline()
        assert line, "the stream ended"
        told += line
    assert b"event: overview" in told
    connection.close()


def test_a_weir_that_stops_does_not_wait_for_those_who_look(start_weir) -> None:  # type: ignore[no-untyped-def]
    import http.client

    weir = start_weir("limits.drain_timeout=1h")
    address = weir.up.addresses["http"]
    connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
    connection.request("GET", "/console/live/overview", headers={"accept": "text/event-stream"})
    response = connection.getresponse()
    assert response.readline() == b"retry: 3000\n"
    weir.run(weir.up.close)
    assert response.read() is not None, "the stream comes to its end"
