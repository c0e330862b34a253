"""Lists: pages, columns, order, and names that match."""

import pytest

from weir.gateway.amqp.management.errors import ManagementError
from weir.gateway.amqp.management.listing import Wanted, answered_list


@pytest.fixture(scope="module")
def filled(api) -> str:
    api.do("PUT", "vhosts/lists")
    for number in range(5):
        api.do("PUT", f"queues/lists/q{number}", {"durable": number % 2 == 0})
    for number in range(3):
        for _ in range(number):
            api.publish("lists", "amq.default", f"q{number}")
    return "lists"


def names(items) -> list[str]:
    return [item["name"] for item in items]


def test_a_page_has_its_numbers(api, filled: str) -> None:
    page = api.get(f"queues/{filled}?page=2&page_size=2")
    items = page.pop("items")
    assert names(items) == ["q2", "q3"]
    assert page == {
        "filtered_count": 5,
        "item_count": 2,
        "page": 2,
        "page_count": 3,
        "page_size": 2,
        "total_count": 5,
    }
    assert names(api.get(f"queues/{filled}?page=3&page_size=2")["items"]) == ["q4"]


def test_names_are_matched_by_a_part_or_by_a_pattern_as_keda_asks(api, filled: str) -> None:
    asked = "page=1&use_regex=true&pagination=false&name=%5Eq%5B12%5D&page_size=100"
    page = api.get(f"queues/{filled}?{asked}")
    assert (names(page["items"]), page["filtered_count"], page["total_count"]) == (["q1", "q2"], 2, 5)
    assert names(api.get(f"queues/{filled}?name=Q3")) == ["q3"]
    assert api.ask("GET", f"queues/{filled}?name=(&use_regex=true").status == 400


def test_they_are_sorted_by_any_column(api, filled: str) -> None:
    assert names(api.get(f"queues/{filled}?sort=messages&sort_reverse=true&page=1&page_size=2")["items"]) == [
        "q2",
        "q1",
    ]
    assert names(api.get(f"queues/{filled}?sort=name&sort_reverse=true"))[0] == "q4"
    by_rate = api.get(f"queues/{filled}?sort=message_stats.publish&columns=name,message_stats.publish")
    assert by_rate[-1] == {"name": "q2", "message_stats": {"publish": 2}}


def test_only_the_columns_that_are_asked_for_are_told(api, filled: str) -> None:
    assert api.get(f"queues/{filled}?columns=name,durable&page=1&page_size=1")["items"] == [
        {"name": "q0", "durable": True}
    ]
    assert api.get(f"queues/{filled}/q2?columns=name,messages_details.rate,nope") == {
        "name": "q2",
        "messages_details": {"rate": 0.0},
    }


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("page=9", "page_out_of_range"),
        ("page=0", "invalid_pagination_parameters"),
        ("page=x", "invalid_pagination_parameters"),
        ("page=1&page_size=501", "invalid_pagination_parameters"),
        ("page=1&page_size=0", "invalid_pagination_parameters"),
    ],
)
def test_a_page_that_cannot_be_is_refused(api, filled: str, query: str, error: str) -> None:
    answer = api.ask("GET", f"queues/{filled}?{query}")
    assert (answer.status, answer.json["error"]) == (400, error)


def test_an_empty_list_has_a_first_page() -> None:
    assert answered_list({"page": "1"}, [])["items"] == []
    with pytest.raises(ManagementError):
        answered_list({"page": "2"}, [])


def test_what_has_no_value_is_sorted_first() -> None:
    items = [{"a": "x"}, {"a": 2}, {}, {"a": 1}]
    assert Wanted({"sort": "a"}).ordered(items) == [{}, {"a": 1}, {"a": 2}, {"a": "x"}]


@pytest.mark.parametrize("end", ["/", "//"])
def test_slashes_at_the_end_of_a_path_mean_nothing(api, vhost: str, end: str) -> None:
    api.do("PUT", f"queues/{vhost}/q{end}", {"durable": True})
    assert [one["name"] for one in api.get(f"queues/{vhost}{end}")] == ["q"]
    assert api.get(f"queues/{vhost}/q{end}")["name"] == "q"
    assert isinstance(api.get(f"queues{end}"), list)
    assert api.get(f"overview{end}")["management_version"]
    assert api.ask("GET", f"queues/{vhost}/none{end}").status == 404
    assert api.ask("PATCH", f"queues/{vhost}/q{end}").status == 405
