"""Tools that RabbitMQ's users have: rabbitmqadmin, as Debian's package has it, and Celery's Flower."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def admin(api, vhost: str) -> Callable[..., Any]:
    """Runs rabbitmqadmin on a vhost; what it prints, as JSON if it lists something."""
    program = shutil.which("rabbitmqadmin")
    if program is None:
        pytest.skip("rabbitmqadmin is not installed (Debian's package rabbitmq-server has it)")
    address = api.weir.up.addresses["http"]
    options = ["-H", address.host, "-P", str(address.port), "-u", "guest", "-p", "guest", "-f", "raw_json"]

    def run(*words: str, fine: bool = True, everywhere: bool = False) -> Any:
        where = [] if everywhere else ["-V", vhost]
        command = [sys.executable, program, *options, *where, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode == 0) is fine, f"{words}: {done.stdout} {done.stderr}"
        if not fine:
            return done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout.startswith(("[", "{")) else done.stdout

    return run


@pytest.mark.process
@pytest.mark.slow
def test_rabbitmqadmin_declares_publishes_gets_and_deletes(admin, vhost: str) -> None:
    assert "exchange declared" in admin("declare", "exchange", "name=e", "type=topic")
    assert "queue declared" in admin("declare", "queue", "name=q", 'arguments={"x-max-length": 10}')
    assert "binding declared" in admin("declare", "binding", "source=e", "destination=q", "routing_key=a.#")
    assert "policy declared" in admin("declare", "policy", "name=p", "pattern=^q", 'definition={"expires":60000}')
    assert "Message published" in admin("publish", "exchange=e", "routing_key=a.b", "payload=hello")
    assert "NOT routed" in admin("publish", "exchange=e", "routing_key=b", "payload=hello")
    (got,) = admin("get", "queue=q", "count=5")
    assert (got["payload"], got["routing_key"], got["redelivered"]) == ("hello", "a.b", False)
    assert "| properties |" in admin("-f", "table", "get", "queue=q")
    (queue,) = admin("list", "queues", "name", "messages", "policy", "arguments")
    assert queue == {"name": "q", "messages": 1, "policy": "p", "arguments": {"x-max-length": 10}}
    bound = [one for one in admin("list", "bindings") if one["source"] == "e"]
    assert [one["properties_key"] for one in bound] == ["a.%23"]
    assert "queue purged" in admin("purge", "queue", "name=q")
    gone = ("source=e", "destination_type=queue", "destination=q", "properties_key=a.%23")
    assert "binding deleted" in admin("delete", "binding", *gone)
    assert "queue deleted" in admin("delete", "queue", "name=q")
    assert "not_found" in admin("delete", "queue", "name=q", fine=False).lower().replace(" ", "_")


@pytest.mark.process
@pytest.mark.slow
def test_rabbitmqadmin_shows_users_and_moves_definitions(admin, vhost: str, unique: str, tmp_path: Path) -> None:
    assert "user declared" in admin("declare", "user", f"name={unique}", "password=x", "tags=monitoring")
    permission = (f"vhost={vhost}", f"user={unique}", "configure=.*", "write=.*", "read=^q")
    assert "permission declared" in admin("declare", "permission", *permission)
    admin("declare", "queue", "name=kept")
    file = tmp_path / "definitions.json"
    assert "Exported definitions" in admin("export", str(file), everywhere=True)
    assert [one["read"] for one in admin("list", "permissions") if one["user"] == unique] == ["^q"]
    assert "user deleted" in admin("delete", "user", f"name={unique}")
    assert "vhost deleted" in admin("delete", "vhost", f"name={vhost}")
    assert "Uploaded definitions" in admin("import", str(file), everywhere=True)
    assert [one["read"] for one in admin("list", "permissions") if one["user"] == unique] == ["^q"]
    assert [one["name"] for one in admin("list", "queues", "name")] == ["kept"]
    (overview,) = admin("show", "overview", "product_name", "object_totals.queues")
    assert overview["product_name"] == "Weir"
    for kind in ("connections", "channels", "consumers", "vhosts", "nodes", "parameters", "operator_policies"):
        assert isinstance(admin("list", kind), list)
    admin("delete", "user", f"name={unique}")


async def test_flower_sees_the_queues_of_its_broker(api, vhost: str) -> None:
    broker = pytest.importorskip("flower.utils.broker")
    for name in ("celery", "other"):
        api.do("PUT", f"queues/{vhost}/{name}", {"durable": True})
    api.publish(vhost, "amq.default", "celery")
    url = f"http://guest:guest@{api.weir.up.addresses['http']}/api/"
    flower = broker.Broker(f"amqp://guest:guest@localhost:5672/{vhost}", http_api=url)
    found: list[Any] = []
    while not found:  # its client gives a server one second, and then says that there are no queues
        found = await flower.queues(["celery"])
    shown = ("name", "messages", "messages_ready", "messages_unacknowledged", "consumers")
    assert [[one[name] for name in shown] for one in found] == [["celery", 1, 1, 0, 0]]
