"""Everything that Debian's RabbitMQ was asked is asked of Weir, and the answers are the same, errors included.

`make compare-rabbitmq` writes down RabbitMQ's answers. What differs on purpose is in `behaviour/differences.py`,
with the reasons in `docs/amqp.md`.
"""

import json
from pathlib import Path

import pytest

from weir.testing.processes.up import UpProcess

ROOT = Path(__file__).parents[3]
_RECORDED = json.loads((Path(__file__).parent / "behaviour" / "rabbitmq-3.10.json").read_text())
SECTIONS = sorted({name.partition(".")[0] for name in _RECORDED})


@pytest.mark.parametrize("section", SECTIONS)
def test_the_answers_are_those_of_rabbitmq(weir: UpProcess, amqp: str, section: str) -> None:
    from tests.gateway.amqp.behaviour import every
    from tests.gateway.amqp.behaviour.scenario import SCENARIOS, Broker, answers

    names = [name for name in SCENARIOS if name.startswith(f"{section}.")]
    assert {name for name in _RECORDED if name.startswith(f"{section}.")} == set(names), "record them anew"
    found = answers(names, Broker(amqp, weir.http_url))
    wrong = {name: said for name in names if (said := every.judged(name, found[name], _RECORDED[name]))}
    assert wrong == {}


def test_every_difference_has_its_reason_in_the_docs() -> None:
    from tests.gateway.amqp.behaviour.differences import DIFFERENCES

    page = (ROOT / "docs" / "amqp.md").read_text()
    assert [name for name in DIFFERENCES if f"`{name}`" not in page] == []
