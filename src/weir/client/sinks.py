"""Epochs of sinks, asked of the admin REST by code that blocks: Spark's driver."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from weir.client.addresses import parse_url
from weir.client.admin import AdminClient, join
from weir.client.settings import ClientSettings
from weir.model.errors import NetworkError, TopicClosedError, WireError
from weir.runtime.real import real_runtime

_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class SinkAccess:
    """Where the admin REST is, who asks, and how long what may be better later is tried again."""

    url: str
    token: str | None = None
    ca: str | None = None
    patience_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Written:
    """A task's transaction, with everything that it has written."""

    transactional_id: str
    producer_id: int
    epoch: int


def last_epoch(access: SinkAccess, sink: str) -> int:
    """The last epoch that the sink has written; -1 if none."""
    return _number(_ask(access, "GET", join("sinks", sink)), "epoch")


def commit_epoch(access: SinkAccess, sink: str, epoch: int, transactions: Sequence[Written]) -> bool:
    """Commit all of them, once; False if the sink had written this epoch before. That may have been by these very
    transactions, if an answer was lost on its way: then they are committed, and cannot be aborted."""
    body = {
        "transactions": [
            {"transactionalId": one.transactional_id, "producerId": one.producer_id, "epoch": one.epoch}
            for one in transactions
        ]
    }
    answer = _ask(access, "POST", join("sinks", sink, "epochs", epoch), body)
    return bool(isinstance(answer, dict) and answer.get("committed"))


def forget(access: SinkAccess, sink: str) -> None:
    """The sink writes no more."""
    _ask(access, "DELETE", join("sinks", sink))


def _ask(access: SinkAccess, verb: str, path: str, body: object = None) -> object:
    """Every one of these may be asked twice."""
    tls = ssl.create_default_context(cafile=access.ca) if parse_url(access.url).secure else None
    settings = ClientSettings(token=access.token, tls=tls)

    async def ask() -> object:
        runtime = real_runtime()
        deadline = runtime.clock.monotonic() + access.patience_s
        while True:
            try:
                async with AdminClient(runtime, access.url, settings) as admin:
                    return await admin.own(verb, path, body)
            except (NetworkError, TopicClosedError):
                if runtime.clock.monotonic() > deadline:
                    raise
            await runtime.clock.sleep(_PAUSE_S)

    return asyncio.run(ask())


def _number(answer: object, name: str) -> int:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, int):
        raise WireError("the admin API does not tell epochs as expected")
    return found
