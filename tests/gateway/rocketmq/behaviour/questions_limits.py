"""More questions: filters, tags, keys and counts at and beyond their limits, and names that RocketMQ keeps."""

from typing import Any
from uuid import uuid4

from rocketmq.grpc_protocol import definition_pb2 as d
from tests.gateway.rocketmq.behaviour.questions import Broker, message, question
from tests.gateway.rocketmq.behaviour.questions_consuming import _MINE, code_of_receiving, received, tag
from tests.gateway.rocketmq.behaviour.questions_sending import _in, sent


def _tagged(broker: Broker, *tags: str) -> None:
    for number, one in enumerate(tags):
        assert broker.send(message(body=b"%d" % number, tag=one)) == "OK"


def _bodies(found: list[Any]) -> list[str]:
    return sorted(one.body.decode() for one in found)


@question
def filters_with_gaps(broker: Broker) -> Any:
    broker.settle(_MINE)
    found = {}
    for name, form in (("a gap", "{}||||{}"), ("at the end", "{}||{}||"), ("at the start", "|| {} || {}")):
        first, second, other = tag(), tag(), tag()
        _tagged(broker, first, second, other)
        found[name] = _bodies(received(broker, "b-normal", form.format(first, second), 2))
    first = tag()
    _tagged(broker, first)
    found["twice"] = _bodies(received(broker, "b-normal", f"{first}||{first}", 1))
    found["only bars"] = code_of_receiving(broker, "||||", d.FilterType.TAG)
    found["blanks"] = code_of_receiving(broker, " || ", d.FilterType.TAG)
    return found


@question
def long_filters(broker: Broker) -> Any:
    broker.settle(_MINE)
    found = {}
    for length in (4_000, 4_200, 20_000, 60_000):
        wanted, run = tag(), uuid4().hex
        others = "||".join(f"{run}{n}" for n in range(length // 36))
        _tagged(broker, wanted)
        found[f"tags of {length}"] = _bodies(received(broker, "b-normal", f"{others}||{wanted}", 1))
    return found


@question
def long_tags_and_keys(broker: Broker) -> Any:
    found = {}
    for length in (255, 1_024, 4_096, 16_384, 20_000, 32_000, 33_000, 70_000):
        found[f"a tag of {length}"] = broker.send(message(tag="t" * length))
        found[f"a key of {length}"] = broker.send(message(keys=["k" * length]))
    found["a tag at the limit"] = broker.send(message(tag="t" * 16_384))
    found["a tag beyond it"] = broker.send(message(tag="t" * 16_385))
    found["a tag that is not ASCII"] = broker.send(message(tag="ä" * 8_193))
    found["keys beyond it"] = broker.send(message(keys=["k" * 128] * 129))
    found["tag and key beyond it"] = broker.send(message(tag="t" * 9_000, keys=["k" * 9_000]))
    found["tag and property beyond it"] = broker.send(message(tag="t" * 9_000, properties={"p": "v" * 9_000}))
    found["a trace context beyond it"] = broker.send(message(trace_context="t" * 17_000))
    ordered = message("b-fifo", kind="FIFO", message_group="g" * 60, tag="t" * (16_384 - 59))
    found["message group and tag beyond it"] = broker.send(ordered)
    found["keys of 32,000"] = broker.send(message(keys=["k" * 100] * 320))
    found["keys of 40,000"] = broker.send(message(keys=["k" * 100] * 400))
    found["properties, tag and keys of 40,000"] = broker.send(
        message(tag="t" * 12_000, keys=["k" * 12_000], properties={"p": "v" * 16_000})
    )
    return found


@question
def counts_of_a_receive(broker: Broker) -> Any:
    broker.settle(_MINE)

    def code(count: int) -> str:
        came = broker.receive("b-normal", _MINE, poll_s=5, count=count, expression=tag())
        if isinstance(came, str):
            return came
        return str(d.Code.Name(next(one for one in came if one.HasField("status")).status.code))

    return {str(count): code(count) for count in (1, 32, 33, 100, 2_000)}


@question
def how_many_come(broker: Broker) -> Any:
    broker.settle(_MINE)
    mine = tag()
    _tagged(broker, *([mine] * 80))
    most = 0
    for _ in range(6):
        came = broker.receive("b-normal", _MINE, poll_s=5, count=64, expression=mine)
        most = max(most, sum(one.HasField("message") for one in came))
    return {"at most 32": most <= 32, "some": most > 0}


@question
def names_of_rocketmqs_own(broker: Broker) -> Any:
    broker.settle(_MINE)
    ordered, plain, named = tag(), tag(), tag()
    broker.send(message("b-fifo", kind="FIFO", message_group="g1", tag=ordered, properties={"p": "v"}))
    (fifo,) = received(broker, "b-fifo", ordered, 1)
    broker.send(message(tag=plain, properties={"p": "v"}))
    (normal,) = received(broker, "b-normal", plain, 1)
    code = broker.send(message(tag=named, properties={"__SHARDINGKEY": "mine"}))
    own = received(broker, "b-normal", named, 1) if code == "OK" else []
    return {
        "of an ordered message": dict(sorted(fifo.user_properties.items())),
        "of a normal message": dict(sorted(normal.user_properties.items())),
        "a sharding key is sent": code,
        "and received": [dict(sorted(one.user_properties.items())) for one in own],
        "as a group": [one.system_properties.message_group for one in own],
    }


@question
def transaction_ids(broker: Broker) -> Any:
    made = {
        "normal": message(),
        "fifo": message("b-fifo", kind="FIFO", message_group="g"),
        "delay": message("b-delay", kind="DELAY", delivery=_in(3600)),
        "transaction": message("b-transaction", kind="TRANSACTION"),
    }
    found = {}
    for name, one in made.items():
        (entry,) = sent(broker, one).entries
        found[name] = bool(entry.transaction_id), entry.transaction_id == one.system_properties.message_id
    return found


@question
def reserved_properties(broker: Broker) -> Any:
    names = (
        "UNIQ_KEY",
        "PGROUP",
        "POP_CK",
        "__BORNHOST",
        "TTL",
        "CORRELATION_ID",
        "INNER_NUM",
        "__transactionId__",
    )
    names = (*names, "WAIT", "TRAN_MSG", "TIMER_DELIVER_MS", "TRACE_CONTEXT", "MSG_TYPE", "CLUSTER", "REAL_QID")
    return {name: broker.send(message(properties={name: "x"})) for name in names}
