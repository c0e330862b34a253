"""Whoever watches a topic is told of its end, however it comes: there may be another in its place to watch."""

from typing import Any
from unittest.mock import patch

import pytest

from weir.model.errors import MetaUnavailableError, StreamClosedError
from weir.stream.compaction import CompactedView
from weir.stream.state_log import StateLog


async def _fails(self: object) -> None:
    raise MetaUnavailableError("nobody answers")


@pytest.mark.parametrize("cleanly", [True, False])
def test_a_topic_that_is_closed_tells_whoever_waits_for_it_to_grow(run: Any, cleanly: bool) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        told: list[bool] = []
        topic.on_growth(lambda: told.append(topic.alive))
        if cleanly:
            await topic.close()
        else:
            with patch.object(StateLog, "close", _fails), pytest.raises(MetaUnavailableError):
                await topic.close()
        assert told
        assert not told[-1]

    run(scenario)


@pytest.mark.parametrize("failing", [StateLog, CompactedView], ids=["state", "view"])
def test_a_topic_of_which_one_part_does_not_close_lets_go_of_the_others(run: Any, failing: type) -> None:
    async def scenario(bench: Any) -> None:
        topic = await bench.topic()
        with patch.object(failing, "close", _fails), pytest.raises(MetaUnavailableError):
            await topic.close()
        assert isinstance(topic.stream.failure, StreamClosedError)

    run(scenario)
