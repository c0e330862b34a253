"""Watches of topic lists that end before their client closes them."""

import asyncio
import logging
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from weir.gateway.pulsar.lookup import Watch
from weir.model.errors import ConnectionLostError, MetaError, TooManyError, WeirError
from weir.model.topics import TopicName
from weir.runtime.tasks import TaskScope

CHANGE = Mock(added=[TopicName.parse("new")], removed=[], hash="hash")


@pytest.mark.parametrize(
    ("failure", "level"),
    [
        (ConnectionLostError("connection to client:1 broke: closed"), logging.INFO),
        (TooManyError("the list has more topics than a client can receive"), logging.WARNING),
        (MetaError("the metadata store is away"), logging.WARNING),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_watcher_that_is_dropped_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture, failure: WeirError, level: int
) -> None:
    lost = isinstance(failure, ConnectionLostError)
    topics: Any = Mock(next=AsyncMock(side_effect=[CHANGE, None if lost else failure]))
    session: Any = Mock(peer="client:1")
    session.turns.pause = AsyncMock()
    session.outbox.drain = AsyncMock(side_effect=failure if lost else None)

    async def watch() -> None:
        session.tasks = TaskScope("session")
        Watch(session, 5, topics).start()
        while session.tasks:
            await asyncio.sleep(0)

    with caplog.at_level(logging.INFO):
        asyncio.run(watch())
    (line,) = caplog.records
    assert (line.levelno, line.exc_info) == (level, None)
    assert "topic watcher 5 of client:1" in line.getMessage()
    assert str(failure) in line.getMessage()
    topics.close.assert_called_once()
