"""What pytest sees of the plug-in: found, light, isolated, told of in reports, and gone with the session."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from weir.pytest_plugin import BrokerFailedError, NotYetError
from weir.pytest_plugin.broker import seconds_of

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PLUGIN = "weir.pytest_plugin.plugin"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs/how-to/pytest.md").read_text(), re.DOTALL | re.MULTILINE
)


def _pytest(folder, *options):
    """A pytest of somebody else: without the settings and plug-ins of this one."""
    found = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *([] if found else ["-p", PLUGIN])]
    return [*command, "-c", "/dev/null", "--rootdir", str(folder), *options, str(folder)]


def _run(folder, *options):
    return subprocess.run(_pytest(folder, *options), capture_output=True, text=True, check=False, cwd=folder)


def test_the_package_names_the_plug_in_for_pytest_to_find():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"weir": PLUGIN}
    assert any(need.startswith("pytest>=") for need in project["optional-dependencies"]["pytest"])


def test_whoever_does_not_use_it_loads_nothing_of_weir():
    code = f"import sys, {PLUGIN}; print(*sorted(m for m in sys.modules if m.startswith('weir')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["weir", "weir.pytest_plugin", PLUGIN]


SHOP = """
import pytest

seen = []

@pytest.mark.parametrize("number", [1, 2])
def test_isolated(weir, weir_session, number):
    assert weir.topics() == []
    assert weir_session.topics() == [f"shared-{n}" for n in range(1, number)]
    weir.produce("orders", "mine")
    weir_session.produce(f"shared-{number}", "ours")
    seen.append((weir.kafka, weir.pulsar, weir.amqp, weir.http))

def test_modules_of_weir_are_not_compiled_anew():
    import weir.model.errors
    assert type(weir.model.errors.__spec__.loader).__name__ == "SourceFileLoader"

def test_own_addresses():
    assert not set(seen[0]) & set(seen[1])

@pytest.mark.weir(config={"listeners": {"amqp": ""}})
def test_broken(weir):
    assert weir.kafka == "elsewhere"

@pytest.mark.weir(config={"defaults.mesage_ttl": "1h"})
def test_wrong_setting(weir):
    pass
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Of one run, with the examples of the docs: loading Weir anew takes seconds."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "test_shop.py").write_text(SHOP)
    for number, example in enumerate(EXAMPLES):
        (folder / f"test_docs_{number}.py").write_text(example)
    return _run(folder, "-rA", "-W", "error::pytest.PytestUnknownMarkWarning").stdout


def test_every_test_has_a_broker_of_its_own(output):
    assert output.count("PASSED test_shop.py::test_isolated") == 2, output
    assert "PASSED test_shop.py::test_own_addresses" in output


def test_pytest_does_not_compile_all_of_weir_anew(output):
    assert "PASSED test_shop.py::test_modules_of_weir_are_not_compiled_anew" in output


def test_every_example_of_the_docs_holds(output):
    wanted = sum(example.count("def test_") for example in EXAMPLES)
    assert wanted >= 9
    assert output.count("PASSED test_docs_") == wanted, output


def test_failures_show_the_brokers_log(output):
    (failed,) = re.findall(r"_+ test_broken _+\n(.*?)\n(?:_{5}|={5})", output, re.DOTALL)
    assert "Weir broker 1 log" in failed
    assert "Kafka clients are served on" in failed
    assert "AMQP clients are served on" not in failed


def test_a_wrong_setting_is_told_in_a_sentence(output):
    assert "the test's broker did not start: defaults.mesage_ttl: there is no setting" in output
    assert "did you mean defaults.message_ttl?" in output


def test_brokers_end_and_leave_nothing_when_pytest_is_killed(tmp_path):
    (tmp_path / "test_hang.py").write_text("""
import json, os, sys, time
from pathlib import Path

def test_hang(weir):
    told = {"folder": weir._folder, "broker": weir._ask("pid")}
    Path("told.new").write_text(json.dumps(told))
    Path("told.new").rename("told.json")
    time.sleep(600)
""")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", PLUGIN, "-c", "/dev/null", "."]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plug-ins take seconds to load
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, env=alone)
    try:
        told = _wait_for(lambda: json.loads((tmp_path / "told.json").read_text()))
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    _wait_for(lambda: (_gone(told["broker"]) and not os.path.exists(told["folder"])) or None)


def _gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it went while its file was open
        return True


def _wait_for(look):
    import time

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            found = look()
            if found is not None:
                return found
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    raise AssertionError("it did not come to pass")


# --- helpers that fail ------------------------------------------------------------------------------


def test_waiting_in_vain_says_what_there_is(weir):
    weir.produce("orders", "one", "two")
    with pytest.raises(NotYetError, match=r"'orders' has 2 messages of the 3 .* the last are b'one', b'two'"):
        weir.wait_for("orders", 3, timeout="1 ms")
    with pytest.raises(NotYetError, match=r"has 1 of 2 messages of the 2"):
        weir.wait_for("orders", 2, timeout="1 ms", where=lambda m: m.text == "two")
    assert [m.text for m in weir.wait_for("orders", where=lambda m: m.text == "two")] == ["two"]
    with pytest.raises(NotYetError, match="no subscription 's' is known"):
        weir.wait_until_empty("orders", "s", timeout="1 ms")


def test_a_broker_that_is_not_there_is_named_as_such(weir_factory):
    weir = weir_factory(config={"listeners.amqp": "", "auth.superusers": ["me"]})
    with pytest.raises(BrokerFailedError, match="does not listen for amqp"):
        _ = weir.amqp
    weir.stop()
    with pytest.raises(BrokerFailedError, match="not running"):
        weir.topics()
    weir.start()
    os.kill(weir._ask("pid"), signal.SIGKILL)
    with pytest.raises(BrokerFailedError, match="does not answer"):
        while True:
            weir.topics()
    with pytest.raises(ValueError, match="forward only"):
        weir.clock.advance(-1)


def test_a_partitioned_topic_is_one_topic(weir):
    import urllib.request

    url = f"{weir.http}/admin/v2/persistent/public/default/parts/partitions"
    request = urllib.request.Request(url, b"3", {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(request).close()
    weir.produce("parts", "a", partition=2)
    weir.produce("parts", "b", partition=0)
    assert [(m.partition, m.text) for m in weir.messages("parts")] == [(0, "b"), (2, "a")]
    assert weir.topics() == ["parts"]
    with pytest.raises(BrokerFailedError, match="no partition 3"):
        weir.produce("parts", "c", partition=3)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("3 days", 259_200.0),
        ("1h 30min", 5400.0),
        ("1 hour, 2 minutes and 3 seconds", 3723.0),
        ("250 ms", 0.25),
        ("2 weeks", 1_209_600.0),
        (1.5, 1.5),
    ],
)
def test_durations_are_written_as_people_write_them(said, seconds):
    assert seconds_of(said) == seconds


@pytest.mark.parametrize("said", ["", "soon", "3", "3 fortnights", "-1 day", -1, float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(said):
    with pytest.raises(ValueError, match="no duration"):
        seconds_of(said)
