"""Hints name a command that installs more of the Weir that is running, from where it came."""

import json
import shlex
import sys

import pytest

from weir.model.diagnosis import DISTRIBUTION, install_command, requirement
from weir.model.errors import SparkSetupError


@pytest.mark.parametrize(
    ("origin", "asked"),
    [
        pytest.param(None, [f"{DISTRIBUTION}[spark]"], id="from an index"),
        pytest.param(
            {"url": "file:///opt/weir", "dir_info": {"editable": True}},
            ["-e", "/opt/weir[spark]"],
            id="a checkout",
        ),
        pytest.param({"url": "file:///opt/my weir", "dir_info": {}}, ["/opt/my weir[spark]"], id="a folder"),
        pytest.param(
            {"url": "file:///tmp/w.whl", "archive_info": {}},
            [f"{DISTRIBUTION}[spark] @ file:///tmp/w.whl"],
            id="a wheel",
        ),
    ],
)
def test_more_is_installed_from_where_the_rest_came(origin: object, asked: list[str]) -> None:
    assert shlex.split(requirement("spark", None if origin is None else json.dumps(origin))) == asked


def test_the_command_is_of_this_interpreter() -> None:
    assert shlex.split(install_command("spark"))[:4] == [sys.executable, "-m", "pip", "install"]
    assert install_command("spark") in str(SparkSetupError("there is no Spark"))
    assert str(SparkSetupError("it ended", hint="see the log")) == "it ended (see the log)"
