"""`python -m tests.gateway.rocketmq.behaviour ENDPOINT`: ask a broker, and print its answers as JSON.

Without an endpoint Apache RocketMQ is fetched from Maven's central repository and started, and what it answers is
written down beside this file. Ends with 77 if it cannot be had.
"""

import json
import sys
import tempfile
from pathlib import Path

from bench.rocketmq_peer import RocketmqPeer, missing
from tests.gateway.rocketmq.behaviour import questions_consuming, questions_limits, questions_sending
from tests.gateway.rocketmq.behaviour.questions import FIFO_GROUPS, GROUPS, ONE_QUEUE, QUESTIONS, TYPES, Broker

RECORDED = Path(__file__).parent / "rocketmq-5.5.0.json"
MISSING = 77
ASKED = (questions_sending, questions_consuming, questions_limits)  # each adds its questions to the others


def answers(endpoint: str, only: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, asked in QUESTIONS.items():
        if only in name:
            broker = Broker(endpoint)
            try:
                found[name] = asked(broker)
            finally:
                broker.close()
    return found


def main() -> int:
    if len(sys.argv) > 1:
        print(json.dumps(answers(*sys.argv[1:]), indent=1))
        return 0
    why = missing()
    if why:
        print(why)
        return MISSING
    with tempfile.TemporaryDirectory() as folder, RocketmqPeer(Path(folder)) as peer:
        for topic, kind in TYPES.items():
            peer.make_topic(topic, kind)
        peer.make_topic(ONE_QUEUE, queues=1)
        for group in GROUPS:
            peer.make_group(group)
        for group in FIFO_GROUPS:
            peer.make_group(group, fifo=True)
        RECORDED.write_text(json.dumps(answers(peer.endpoint), indent=1) + "\n")
    print(f"written: {RECORDED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
