"""The table of API handlers with their versions, and the ApiVersions response derived from it.

Modules under `handlers` register their functions with a decorator; `load_handlers` imports them all.

    @handler(ApiKey.HEARTBEAT, versions=(0, 4))      a coroutine; the session's next request waits for it
    @pipelined(ApiKey.PRODUCE, versions=(3, 13))     a plain function: decides at once, and answers with a future

A handler returns the response message, or None if the client expects no response. It puts errors of single topics
and partitions into the response (`errors.code_of`). An error that it raises concerns the whole request: the
session answers with it if the response has an error field, and otherwise closes the connection.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from weir.gateway.kafka.errors import Code
from weir.model.check import check
from weir.wire.kafka import messages as m

F = TypeVar("F", bound=Callable[..., Any])


class Handler(NamedTuple):
    run: Callable[..., Any]  # (session, request, version)
    first: int
    last: int
    #: Whether `run` is a plain function, and the next requests need not wait for its result.
    pipelined: bool
    #: Whether a client may send it before authentication.
    before_auth: bool
    #: The lowest version in ApiVersions; it may be below `first`.
    advertised_first: int


HANDLERS: dict[int, Handler] = {}


def handler(
    key: int, *, versions: tuple[int, int], before_auth: bool = False, advertised_first: int | None = None
) -> Callable[[F], F]:
    """Register `async def run(session, request, version) -> response` for versions from first to last."""
    return _declare(key, versions, pipelined=False, before_auth=before_auth, advertised_first=advertised_first)


def pipelined(key: int, *, versions: tuple[int, int], advertised_first: int | None = None) -> Callable[[F], F]:
    """Register `def run(session, request, version, answer)`, which calls `answer` with the response later, and
    returns a coroutine if it must await something before it can decide."""
    return _declare(key, versions, pipelined=True, before_auth=False, advertised_first=advertised_first)


def _declare(
    key: int, versions: tuple[int, int], *, pipelined: bool, before_auth: bool, advertised_first: int | None
) -> Callable[[F], F]:
    first, last = versions

    def declare(run: F) -> F:
        check(int(key) not in HANDLERS, f"API {int(key)} has one handler")
        check(0 <= first <= last, "versions run from the first to the last")
        advertised = first if advertised_first is None else advertised_first
        HANDLERS[int(key)] = Handler(run, first, last, pipelined, before_auth, advertised)
        return run

    return declare


def load_handlers() -> None:
    """Import every module under `handlers`, so that each registers its functions."""
    package = importlib.import_module("weir.gateway.kafka.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


_Supported = m.ApiVersionsResponse.SupportedFeatureKey
_Finalized = m.ApiVersionsResponse.FinalizedFeatureKey

#: Features that clients check, by Kafka's names: the lowest supported level, and the active level.
FEATURES = {"transaction.version": (0, 2)}
#: Each release has one fixed set of features.
_FEATURES_EPOCH = 0
#: Clients of older versions fail to decode a feature whose lowest level is 0.
_LEVEL_0_SINCE = 4


def api_versions(error: Code = Code.NONE, version: int = 0) -> m.ApiVersionsResponse:
    """The ApiVersions response with every API that has a handler."""
    return m.ApiVersionsResponse(
        error_code=error,
        api_keys=[
            m.ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=handler.advertised_first, max_version=handler.last
            )
            for key, handler in sorted(HANDLERS.items())
        ],
        supported_features=[
            _Supported(name=name, min_version=lowest, max_version=level)
            for name, (lowest, level) in FEATURES.items()
            if lowest > 0 or version >= _LEVEL_0_SINCE
        ],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            _Finalized(name=name, min_version_level=level, max_version_level=level)
            for name, (_, level) in FEATURES.items()
        ],
    )
