"""The runtimes that the conformance suite runs over."""

import pytest

from weir.testing.world.drivers import drivers


@pytest.fixture(params=drivers().items(), ids=lambda item: item[0])
def driver(request):
    return request.param[1]
