"""What Apache RocketMQ was asked is asked of Weir, and the answers are the same, codes included.

`make compare-rocketmq` writes down Apache RocketMQ's answers. What differs on purpose is here, with the reasons in
`docs/reference/rocketmq.md`.
"""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.rocketmq.behaviour import questions_consuming, questions_limits, questions_sending
from tests.gateway.rocketmq.behaviour.questions import FIFO_GROUPS, ONE_QUEUE, QUESTIONS, TYPES, Broker

from weir.testing.processes.up import UpProcess

pytestmark = pytest.mark.process
_RECORDED = json.loads((Path(__file__).parent / "behaviour" / "rocketmq-5.5.0.json").read_text())
ASKED = (questions_sending, questions_consuming, questions_limits)  # each adds its questions to the others
DIFFERENCES: dict[str, Any] = {
    # The client is told what it did, not of a failure inside.
    "recalling": {"no handle": "BAD_REQUEST", "a handle that is none": "BAD_REQUEST"},
    "settling": {"nonsense acknowledged": "INVALID_RECEIPT_HANDLE", "nothing acknowledged": "BAD_REQUEST"},
    "wrong_filters": {
        "sql without an end": "ILLEGAL_FILTER_EXPRESSION",
        "sql that is a number": "ILLEGAL_FILTER_EXPRESSION",
    },
    "wrong_counts": {"none": "BAD_REQUEST", "fewer than none": "BAD_REQUEST"},
    "changed_by_too_much": {"nonsense": "INVALID_RECEIPT_HANDLE"},
    "forwarded_to_dead_letters": {"nonsense": "INVALID_RECEIPT_HANDLE"},
    "recalled_twice": {"of another topic": "BAD_REQUEST"},
    "a_half_message_decided_twice": {"the same again": "OK", "otherwise": "INVALID_TRANSACTION_ID"},
    # Its transaction is what is looked for.
    "a_decision_that_is_none": {"a message id that is none": "OK"},
    # A fraction is a number.
    "sql": {"n > 1": ["1", "2", "4"], "between": ["1", "2", "4"], "or": ["2", "3", "4"]},
    # Who has a message now is who may acknowledge it.
    "an_old_handle": {"old": "INVALID_RECEIPT_HANDLE"},
    # What would be forgotten is refused.
    "a_type_and_what_it_lacks": {
        "a half message with a group": "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
        "a half message with a moment": "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    },
    "several_in_one_request": {"each": ["OK"] * 3},
    "a_moment_that_is_far": {"two days": "OK", "a month": "OK"},
    "a_topic_that_is_not_there": "OK",
    # A filter that names nothing lets nothing through, and a filter of any length is stored with its subscription.
    "filters_with_gaps": {"blanks": "ILLEGAL_FILTER_EXPRESSION"},
    # The id of a half message is a handle: it says where the message waits.
    "transaction_ids": {"transaction": [True, False]},
    # RocketMQ fails inside.
    "reserved_properties": {"INNER_NUM": "OK"},
    # Apache RocketMQ's proxy does not serve these.
    "pulling": {"PullMessage": "OK", "QueryOffset": "OK"},
    "offsets": {"UpdateOffset": "OK", "GetOffset": "OK"},
}


@pytest.fixture(scope="module")
def judged(weir: UpProcess) -> str:
    """With the topics that the questions are about."""
    for topic, kind in TYPES.items():
        ask(weir, "PUT", f"/admin/v2/persistent/public/default/{topic}/partitions", "8")
        path = f"/admin/weir/v1/message-types/persistent/public/default/{topic}"
        ask(weir, "PUT", path, json.dumps({"types": [kind.lower()]}))
    ask(weir, "PUT", f"/admin/v2/persistent/public/default/{ONE_QUEUE}/partitions", "1")
    for group in FIFO_GROUPS:
        ask(weir, "PUT", f"/admin/weir/v1/group-settings/public/default/{group}", '{"fifo": true}')
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
    expected, differs = _RECORDED[name], DIFFERENCES.get(name)
    if isinstance(differs, dict):
        assert all(expected[part] != said for part, said in differs.items()), "it is the same by now"
        expected = expected | differs
    elif differs is not None:
        expected = differs
    assert json.loads(json.dumps(answer)) == expected
