"""Everything that Debian's RabbitMQ was asked is asked of Weir, and the answers are the same, errors included.

`make compare-rabbitmq` writes down RabbitMQ's answers. What differs on purpose is in `behaviour/differences.py`,
with the reasons in `docs/reference/amqp.md`.
"""

import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from weir.broker.security.tokens import create_secret, create_token
from weir.testing.processes.up import UpProcess

ROOT = Path(__file__).parents[3]
_RECORDED = json.loads((Path(__file__).parent / "behaviour" / "rabbitmq-3.10.json").read_text())
SECTIONS = sorted({name.partition(".")[0] for name in _RECORDED})
#: Who asks here is no stranger: users, passwords and permissions count.
GUARDED = ("certificates", "permissions")


@pytest.mark.parametrize("section", [section for section in SECTIONS if section not in GUARDED])
def test_the_answers_are_those_of_rabbitmq(weir: UpProcess, amqp: str, section: str) -> None:
    check_section(section, amqp, weir.http_url)


@pytest.mark.process
def test_refusals_are_those_of_rabbitmq(tmp_path: Path) -> None:
    from tests.gateway.amqp.behaviour.__main__ import make_certificates

    secret = base64.b64encode(create_secret()).decode()
    auth = {"authenticate": "true", "authorise": "true", "superusers": "guest"}
    settings = [f"auth.{name}={said}" for name, said in auth.items()]
    certificates = tmp_path / "certificates"
    make_certificates(certificates)
    tls = {"certificate": "localhost.pem", "key": "localhost-key.pem", "client_ca": "localhost.pem"}
    settings += [f"tls.{name}={certificates / file}" for name, file in tls.items()]
    settings += ["tls.client_auth=optional", "listeners.amqps=127.0.0.1:0"]
    guarded = UpProcess(tmp_path, *settings, f"auth.token_secret=data:;base64,{secret}")
    guarded.start()
    try:
        make_guest(guarded.http_url, create_token(base64.b64decode(secret), "guest"))
        secure = {"amqps": guarded.addresses["amqps"], "certificates": certificates}
        for section in GUARDED:
            check_section(section, guarded.amqp, guarded.http_url, **secure)
    finally:
        guarded.close()


def make_guest(url: str, token: str) -> None:
    """As RabbitMQ has one from the start: who may do everything, with the password that everybody knows."""
    body = json.dumps({"password": "guest", "tags": "administrator"}).encode()
    request = urllib.request.Request(f"{url}/api/users/guest", body, method="PUT")
    request.add_header("Authorization", f"Bearer {token}")
    request.add_header("Content-Type", "application/json")
    urllib.request.urlopen(request, timeout=30).close()


def check_section(section: str, amqp: str, management: str, **secure: Any) -> None:
    from tests.gateway.amqp.behaviour import every
    from tests.gateway.amqp.behaviour.scenario import SCENARIOS, Broker, answers

    names = [name for name in SCENARIOS if name.startswith(f"{section}.")]
    assert {name for name in _RECORDED if name.startswith(f"{section}.")} == set(names), "record them anew"
    found = answers(names, Broker(amqp, management, **secure))
    wrong = {name: said for name in names if (said := every.judged(name, found[name], _RECORDED[name]))}
    assert wrong == {}


def test_every_difference_has_its_reason_in_the_docs() -> None:
    from tests.gateway.amqp.behaviour.differences import DIFFERENCES

    page = (ROOT / "docs" / "reference" / "amqp.md").read_text()
    assert [name for name in DIFFERENCES if f"`{name}`" not in page] == []
