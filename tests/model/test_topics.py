"""Topic names: the forms that are understood, and the ones that are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.model.errors import InvalidNameError
from weir.model.topics import Domain, NamespaceName, TopicName


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("acme/shop/orders", "persistent://acme/shop/orders"),
        ("non-persistent://acme/shop/orders", "non-persistent://acme/shop/orders"),
        ("orders-partition-7", "persistent://public/default/orders-partition-7"),
        ("a b/ö".replace("/", "-"), "persistent://public/default/a b-ö"),
    ],
)
def test_every_form_means_one_full_name(text: str, full: str) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert TopicName.parse(full) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "persistent://x",
        "a/b",
        "a/b/c/d",
        "ftp://a/b/c",
        "../../etc/passwd",
        "a/b/..",
        "a/../c",
        "a/b/\x00",
        "x" * 600,
        "persistent://a/b/",
        "persistent:///b/c",
        "a/b/\ud800",
    ],
)
def test_a_name_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidNameError):
        TopicName.parse(text)


def test_a_partition_knows_its_topic_and_number() -> None:
    name = TopicName.parse("persistent://a/b/c-partition-12")
    assert (name.partition, str(name.base), name.base.at(12)) == (12, "persistent://a/b/c", name)
    assert TopicName.parse("c-partition-01").partition is None


def test_a_namespace_is_a_tenant_and_a_name() -> None:
    assert NamespaceName.parse("a/b") == NamespaceName("a", "b")
    assert TopicName.parse("a/b/c").domain is Domain.PERSISTENT


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_an_error_that_says_why(text: str) -> None:
    try:
        name = TopicName.parse(text)
    except InvalidNameError:
        return
    assert TopicName.parse(str(name)) == name
