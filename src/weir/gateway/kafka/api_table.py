"""Which function handles which API, and in which versions: declared where the function stands.

A module under `handlers` decorates its functions; importing the folder is all that is needed to have them.

    @handler(ApiKey.HEARTBEAT, versions=(0, 4))      a coroutine; the session's next request waits for it
    @pipelined(ApiKey.PRODUCE, versions=(3, 13))     a plain function: decides at once, and answers with a future

A handler answers with the response message, or with None if the client waits for no answer. Errors of single
topics and partitions go into its answer (`errors.code_of`); one that it raises is about the whole request, and the
session answers it if the response has a place for it, and else ends the connection.

What clients are told of the APIs that are served, in which versions, and which features are in force.
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
    #: Whether `run` is a plain function whose future the next requests need not wait for.
    pipelined: bool
    #: Whether it may come before the client has said who it is.
    before_auth: bool
    #: The lowest version that clients are told of, where that differs from the lowest that is served.
    advertised_first: int


HANDLERS: dict[int, Handler] = {}


def handler(
    key: int, *, versions: tuple[int, int], before_auth: bool = False, advertised_first: int | None = None
) -> Callable[[F], F]:
    """Declare `async def run(session, request, version) -> response`; versions from the first to the last."""
    return _declare(key, versions, pipelined=False, before_auth=before_auth, advertised_first=advertised_first)


def pipelined(key: int, *, versions: tuple[int, int], advertised_first: int | None = None) -> Callable[[F], F]:
    """Declare `def run(session, request, version)` that answers with a future of the response, or with a coroutine
    if it must wait for something before it can decide."""
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
    """Import every module of the folder, so that each declares what it handles."""
    package = importlib.import_module("weir.gateway.kafka.handlers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


_Supported = m.ApiVersionsResponse.SupportedFeatureKey
_Finalized = m.ApiVersionsResponse.FinalizedFeatureKey

#: Features that clients go by, by Kafka's names: the lowest level that is understood, and the one in force.
FEATURES = {"transaction.version": (0, 2)}
#: They are part of the release: there is one set of them, and it never changes.
_FEATURES_EPOCH = 0
#: Clients that ask in older versions fail to read a feature whose lowest level is 0.
_LEVEL_0_SINCE = 4


def api_versions(error: Code = Code.NONE, version: int = 0) -> m.ApiVersionsResponse:
    """Every API that has a handler."""
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
