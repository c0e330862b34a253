"""The runtimes that the conformance suite runs over."""

import pytest

from weir.testing.world.drivers import drivers


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What brokers of the pytest plug-in run on has a clock and a disk of its own, and the network of asyncio."""
    if "driver" in metafunc.fixturenames:
        own = metafunc.module.__name__.endswith(("_clock", "_disk"))
        found = {name: driver for name, driver in drivers().items() if own or name != "scratch"}
        metafunc.parametrize("driver", found.values(), ids=found)
