"""What Apache RocketMQ was asked is asked of Weir, and the answers are the same, codes included.

`make compare-rocketmq` writes down Apache RocketMQ's answers. What differs on purpose is here, with the reasons in
`docs/rocketmq.md`.
"""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.rocketmq.behaviour.questions import QUESTIONS, TYPES, Broker

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process
_RECORDED = json.loads((Path(__file__).parent / "behaviour" / "rocketmq-5.5.0.json").read_text())
DIFFERENCES: dict[str, Any] = {
    # The client is told what it did, not of a failure inside.
    "recalling": {"no handle": "BAD_REQUEST", "a handle that is none": "BAD_REQUEST"},
    "settling": {"nonsense acknowledged": "INVALID_RECEIPT_HANDLE", "nothing acknowledged": "BAD_REQUEST"},
    # Apache RocketMQ's proxy does not serve these.
    "pulling": {"PullMessage": "OK", "QueryOffset": "OK"},
}


@pytest.fixture(scope="module")
def judged(weir: UpProcess) -> str:
    """With the topics that the questions are about."""
    for topic, kind in TYPES.items():
        ask(weir, "PUT", f"/admin/v2/persistent/public/default/{topic}/partitions", "8")
        path = f"/admin/weir/v1/message-types/persistent/public/default/{topic}"
        ask(weir, "PUT", path, json.dumps({"types": [kind.lower()]}))
    return weir.rocketmq


def ask(weir: UpProcess, method: str, path: str, body: str) -> None:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(weir.http_url + path, body.encode(), headers, method=method)
    urllib.request.urlopen(request, timeout=60).close()


@pytest.mark.parametrize("name", list(QUESTIONS))
def test_the_answers_are_those_of_apache_rocketmq(judged: str, name: str) -> None:
    broker = Broker(judged)
    try:
        answer = QUESTIONS[name](broker)
    finally:
        broker.close()
    expected = _RECORDED[name]
    assert answer == (expected | DIFFERENCES[name] if name in DIFFERENCES else expected)
