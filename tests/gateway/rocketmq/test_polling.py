"""How long a receive waits for messages: the answer comes before the deadline of the client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.gateway.rocketmq.errors import Refused
from weir.gateway.rocketmq.handlers.receive import polling_s

SECONDS = st.floats(0, 1000, allow_nan=False)


@pytest.mark.parametrize(
    ("asked_s", "remaining_s", "request_timeout_s", "waits_s"),
    [
        pytest.param(None, 13.0, 3.0, 11.5, id="Java 5.0.3 waits 10 s, and 3 s for the request"),
        pytest.param(None, 8.0, 6.0, 5.0, id="half of the request timeout is for the way back"),
        pytest.param(None, 60.0, 3.0, 20.0, id="20 s at most"),
        pytest.param(None, 1.0, 3.0, 0.0, id="a deadline too short to wait"),
        pytest.param(None, None, 3.0, 20.0, id="no deadline"),
        pytest.param(5.0, 8.0, 3.0, 5.0, id="as the client says"),
        pytest.param(5.0, 4.0, 3.0, 3.8, id="but not beyond its deadline"),
        pytest.param(100.0, None, 3.0, 20.0, id="and 20 s at most"),
    ],
)
def test_a_poll_waits(
    asked_s: float | None, remaining_s: float | None, request_timeout_s: float, waits_s: float
) -> None:
    assert polling_s(asked_s, remaining_s, request_timeout_s) == pytest.approx(waits_s)


@given(st.none() | SECONDS, st.none() | SECONDS, SECONDS)
def test_it_ends_before_the_deadline(
    asked_s: float | None, remaining_s: float | None, request_timeout_s: float
) -> None:
    if remaining_s is not None and remaining_s < 0.2:
        with pytest.raises(Refused):
            polling_s(asked_s, remaining_s, request_timeout_s)
        return
    waits_s = polling_s(asked_s, remaining_s, request_timeout_s)
    assert 0 <= waits_s <= 20
    if remaining_s is not None:
        assert waits_s <= remaining_s - 0.2 + 1e-9
