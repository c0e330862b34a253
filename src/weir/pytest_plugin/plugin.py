"""What pytest finds by the entry point: fixtures, the marker, and brokers' logs in the reports of failed tests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weir.pytest_plugin.broker import SpareBrokers, WeirBroker
    from weir.pytest_plugin.processes import BrokerProcesses

    #: Makes one more broker: `weir_factory(config={...})`.
    WeirFactory = Callable[..., WeirBroker]

_BROKERS: pytest.StashKey[list[WeirBroker]] = pytest.StashKey()
_OF_SESSION: pytest.StashKey[WeirBroker] = pytest.StashKey()
_MARKER = "weir(config=None): settings of the test's broker (the `weir` fixture), by their names as in weir.toml"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    _keep_weir_as_compiled(pluginmanager)
    parser.addini("weir_config", "Settings of every broker of the weir fixtures, as key=value", "linelist", [])


def _keep_weir_as_compiled(pluginmanager: pytest.PytestPluginManager) -> None:
    """pytest compiles every module of a plug-in's distribution anew, to explain its assertions. Weir has thousands
    of files and no assertions that a test would want explained; there is no other way to say so."""
    hook = getattr(pluginmanager, "rewrite_hook", None)
    marked = getattr(hook, "_must_rewrite", None)
    if hook is not None and isinstance(marked, set):
        marked.discard("weir")
        hook.mark_rewrite()  # what it remembers of names is forgotten


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture(scope="session")
def _weir_processes() -> Iterator[BrokerProcesses]:
    from weir.pytest_plugin.processes import BrokerProcesses

    processes = BrokerProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def _weir_spares(_weir_processes: BrokerProcesses) -> Iterator[SpareBrokers]:
    from weir.pytest_plugin.broker import SpareBrokers

    spares = SpareBrokers(_weir_processes)
    yield spares
    spares.close()


@pytest.fixture
def weir_factory(request: pytest.FixtureRequest, _weir_spares: SpareBrokers) -> Iterator[WeirFactory]:
    """Makes brokers: `weir_factory(config={"defaults.message_ttl": "1h"})`. They end with the test."""
    made: list[WeirBroker] = request.node.stash.setdefault(_BROKERS, [])

    def make(config: Mapping[str, Any] | None = None) -> WeirBroker:
        broker = _weir_spares.take(_settings(request.config, config or {}))
        made.append(broker)
        broker.start()
        _weir_spares.prepare(broker.config)
        return broker

    yield make
    while made:
        made.pop().close()


@pytest.fixture
def weir(request: pytest.FixtureRequest, weir_factory: WeirFactory) -> WeirBroker:
    """A whole Weir of this test alone, in a process of its own, with a clock that the test can move. Settings:
    `@pytest.mark.weir(config={"defaults.message_ttl": "1h"})`."""
    config: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers("weir"))):
        config |= _config_of(marker)
    from weir.pytest_plugin.messages import BrokerFailedError

    try:
        return weir_factory(config=config)
    except BrokerFailedError as failed:
        reason = str(failed)
    pytest.fail(f"the test's broker did not start: {reason}", pytrace=False)


@pytest.fixture(scope="session")
def weir_session(request: pytest.FixtureRequest, _weir_processes: BrokerProcesses) -> Iterator[WeirBroker]:
    """One Weir for all tests of the session (of each worker, with pytest-xdist): choose other topics in each."""
    from weir.pytest_plugin.broker import WeirBroker

    broker = WeirBroker(_weir_processes, _settings(request.config, {}))
    request.config.stash[_OF_SESSION] = broker
    broker.start()
    yield broker
    broker.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    broker = item.config.stash.get(_OF_SESSION, None)
    if broker is not None:
        broker.forget_log()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when != "teardown":
        for number, broker in enumerate(_brokers_of(item), 1):
            said = broker.log()
            if said:
                report.sections.append((f"Weir broker {number} log", said))
    return report


def _brokers_of(item: pytest.Item) -> list[WeirBroker]:
    brokers = list(item.stash.get(_BROKERS, ()))
    of_session = item.config.stash.get(_OF_SESSION, None)
    if of_session is not None and "weir_session" in getattr(item, "fixturenames", ()):
        brokers.append(of_session)
    return brokers


def _settings(config: pytest.Config, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of a broker: its own win."""
    everywhere: dict[str, Any] = {}
    for line in config.getini("weir_config"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"weir_config: {line!r} is no assignment: write key=value")
        everywhere[name.strip()] = value.strip()
    return {**everywhere, **own}


def _config_of(marker: pytest.Mark) -> Mapping[str, Any]:
    if marker.args or set(marker.kwargs) - {"config"}:
        raise pytest.UsageError("write the marker as @pytest.mark.weir(config={...})")
    return marker.kwargs.get("config") or {}
