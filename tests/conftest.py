"""What holds for every test: no event loop of a node is held while it runs."""

from collections.abc import Iterator

import pytest

from weir.testing.loop_thread import check_loops


@pytest.fixture(autouse=True)
def loops_are_not_held() -> Iterator[None]:
    """A test fails whose node did one thing for so long that everyone else would have waited for it."""
    yield
    check_loops()
