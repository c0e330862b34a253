"""`weir prepared`: prepared, listed, shown, counted, committed and rolled back, as a user types it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.process


@pytest.fixture
def half(run_here: Callable[..., Any]) -> Callable[..., str]:
    def run(*words: str) -> str:
        done = run_here("half", *words)
        assert done.code == 0, done
        return str(done.out)

    return run


def test_a_half_message_is_seen_when_it_is_committed(
    run_here: Callable[..., Any], half: Callable[..., str]
) -> None:
    topic = "half-cli-commit"
    prepared = half(
        "prepare", topic, "hello", "--group", "shop", "--key", "k", "--property", "tenant=acme"
    ).strip()
    listed = half("list", topic)
    assert all(word in listed for word in (prepared, "shop"))
    (found,) = json.loads(half("list", topic, "--group", "shop", "-o", "json"))
    assert found["id"] == prepared
    assert json.loads(half("list", topic, "--group", "others", "-o", "json")) == []
    shown = half("show", topic, prepared)
    assert all(word in shown for word in ("hello", "shop", "acme"))
    assert "commit " in half("commit", topic, prepared)
    assert json.loads(half("list", topic, "-o", "json")) == []
    seen = run_here("consume", topic, "-n", "1", "--from", "earliest")
    assert (seen.code, "hello" in seen.out) == (0, True)


def test_a_half_message_that_is_rolled_back_cannot_be_committed(
    run_here: Callable[..., Any], half: Callable[..., str]
) -> None:
    topic = "half-cli-rollback"
    prepared = half("prepare", topic, "never", "--group", "shop").strip()
    decided = json.loads(half("rollback", topic, prepared, "-o", "json"))
    assert decided[0]["id"] == prepared
    refused = run_here("half", "commit", topic, prepared)
    assert refused.code != 0
    assert "rolled back" in refused.err


def test_what_is_no_id_is_told_to_be_none(run_here: Callable[..., Any], half: Callable[..., str]) -> None:
    half("prepare", "half-cli-none", "x", "--group", "shop")
    for words in (("show", "half-cli-none", "nonsense"), ("commit", "half-cli-none", "99:99")):
        refused = run_here("half", *words)
        assert refused.code != 0
        assert refused.err.startswith(("Error", "error", "weir"))
