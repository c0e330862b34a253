"""Connectors, asked of the admin REST by code that blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weir.client.admin import Access, ask, join
from weir.client.definition_runner import RunnerLease
from weir.model.definitions import Connector, ConnectorProgress, ConnectorWanted
from weir.model.errors import (
    ConnectorExistsError,
    ConnectorNotFoundError,
    NotAllowedError,
    NotFoundError,
    WireError,
)
from weir.model.topics import TopicName

_RUNNER = RunnerLease("connector-runner")
#: Where the connectors are run, if anywhere.
runner = _RUNNER.state
take_runner = _RUNNER.take
release_runner = _RUNNER.release


@dataclass(frozen=True, slots=True)
class DefinedConnector:
    """A connector, and what its runner last said of it."""

    connector: Connector
    progress: ConnectorProgress | None


def all_connectors(access: Access) -> Sequence[DefinedConnector]:
    return [_defined(one) for one in _list(ask(access, "GET", "connectors"))]


def add_connector(access: Access, name: TopicName, config: str) -> DefinedConnector:
    """ConnectorExistsError if there is another of this name."""
    try:
        return _defined(ask(access, "PUT", _path(name), {"config": config}))
    except NotAllowedError as refused:
        raise ConnectorExistsError(refused.what, hint="") from None  # the server has said what to do


def update_connector(access: Access, name: TopicName, config: str) -> DefinedConnector:
    """Change its definition; its positions are kept. ConnectorNotFoundError."""
    try:
        return _defined(ask(access, "POST", _path(name), {"config": config}))
    except NotFoundError as missing:
        raise ConnectorNotFoundError(missing.what, hint="define it with: weir connect add") from None


def want(access: Access, name: TopicName, wanted: ConnectorWanted) -> None:
    ask(access, "PUT", f"{_path(name)}/state", {"state": wanted.value})


def remove_connector(access: Access, name: TopicName) -> None:
    ask(access, "DELETE", _path(name))


def report(access: Access, name: TopicName, progress: ConnectorProgress) -> None:
    body = {
        "id": progress.id,
        "state": progress.state,
        "records": progress.records,
        "recordsPerSecond": progress.records_per_second,
        "lag": progress.lag,
        "deadLetters": progress.dead_letters,
        "restarts": progress.restarts,
        "batchMs": progress.batch_ms,
        "position": progress.position[:4_000],
        "error": progress.error[:4_000],
        "failures": progress.failures,
        "failedMs": progress.failed_ms,
        "nextTryMs": progress.next_try_ms,
    }
    ask(access, "PUT", f"{_path(name)}/progress", body)


def removed(access: Access) -> Sequence[Connector]:
    """Connectors that are no more, and may have left something."""
    return [_defined(one).connector for one in _list(ask(access, "GET", "connector-runner/removed"))]


def forget_removed(access: Access, connector_id: str) -> None:
    """Nothing is left of it."""
    ask(access, "DELETE", join("connector-runner", "removed", connector_id))


def _path(name: TopicName) -> str:
    return join("connectors", name.namespace.tenant, name.namespace.name, name.local)


def _list(answer: Any) -> list[Any]:
    if not isinstance(answer, list):
        raise WireError("the server does not tell connectors as expected")
    return answer


def _defined(found: Any) -> DefinedConnector:
    try:
        told = found.get("progress")
        connector = Connector(
            TopicName.parse(found["name"]),
            found["id"],
            found["config"],
            ConnectorWanted(found["state"]),
            found["role"],
            found["createdMs"],
        )
        return DefinedConnector(connector, None if told is None else _progress(told))
    except (KeyError, TypeError, ValueError, AttributeError) as bad:
        raise WireError(f"the server does not tell connectors as expected: {bad!r}") from None


def _progress(told: Any) -> ConnectorProgress:
    return ConnectorProgress(
        id=told["id"],
        state=told["state"],
        records=told["records"],
        records_per_second=told["recordsPerSecond"],
        lag=told["lag"],
        dead_letters=told["deadLetters"],
        restarts=told.get("restarts", 0),
        batch_ms=told.get("batchMs", 0),
        position=told["position"],
        error=told["error"],
        failures=told["failures"],
        failed_ms=told["failedMs"],
        next_try_ms=told["nextTryMs"],
        reported_ms=told["reportedMs"],
    )
