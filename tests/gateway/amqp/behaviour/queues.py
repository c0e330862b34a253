"""Queues: how they are declared, whose they are, and when they go."""

from typing import Any

from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import until

from weir.wire.amqp.methods import Method, basic, channel, exchange
from weir.wire.amqp.methods import queue as methods
from weir.wire.amqp.tables import Field, Table


@scenario
def declared_and_declared_again(session: Session) -> Any:
    channel = session.channel()
    found = []
    for options in ({"durable": True}, {}, {"auto_delete": True}, {"exclusive": True}):
        name = session.name("-".join(options) or "plain")
        found.append([channel.declare(name, **options), channel.declare(name, **options)])
    return found


@scenario
def the_server_makes_names(session: Session) -> Any:
    channel = session.channel()
    first, second = channel.declare("", exclusive=True), channel.declare("", exclusive=True)
    return [first, second, first[0] == second[0], channel.count(first[0])]


@scenario
def passive_tells_messages_and_consumers(session: Session) -> Any:
    channel = session.channel()
    name = channel.queue(session.name("q"), exclusive=True)
    channel.put(name, "1", "2", "3")
    found = [channel.declare(name, passive=True)]
    channel.qos(1)
    channel.consume(name)
    channel.wait(1)
    found.append(until(lambda: _told(channel.declare(name, passive=True), [name, 2, 1])))
    found.append(channel.talk.channel().declare(session.name("none"), passive=True))
    return found


def _told(found: Any, wanted: Any) -> Any:
    return found if found == wanted else None


@scenario
def names_of_the_broker_are_refused(session: Session) -> Any:
    return [session.channel().declare("amq.mine"), session.channel().declare("amq.gen-mine", passive=True)]


@scenario
def inequivalent_declarations_are_refused(session: Session) -> Any:
    name = session.name("q")
    session.channel().queue(name, durable=True, arguments={"x-message-ttl": 60_000})
    same = {"x-message-ttl": 60_000}
    others: dict[str, dict[str, Any]] = {
        "durable": {"durable": False, "arguments": same},
        "auto_delete": {"durable": True, "auto_delete": True, "arguments": same},
        "exclusive": {"durable": True, "exclusive": True, "arguments": same},
        "missing argument": {"durable": True},
        "other value": {"durable": True, "arguments": {"x-message-ttl": 50_000}},
        "more arguments": {"durable": True, "arguments": same | {"x-expires": 60_000}},
        "unknown argument": {"durable": True, "arguments": same | {"x-mine": 1}},
        "type": {"durable": True, "arguments": same | {"x-queue-type": "quorum"}},
        "same type": {"durable": True, "arguments": same | {"x-queue-type": "classic"}},
    }
    return {title: session.channel().declare(name, **options) for title, options in others.items()}


@scenario
def every_argument_counts_for_equivalence(session: Session) -> Any:
    arguments: dict[str, tuple[Any, Any]] = {
        "x-message-ttl": (60_000, 50_000),
        "x-expires": (60_000, 50_000),
        "x-max-length": (10, 20),
        "x-max-length-bytes": (1000, 2000),
        "x-overflow": ("drop-head", "reject-publish"),
        "x-dead-letter-exchange": ("one", "two"),
        "x-max-priority": (5, 6),
        "x-single-active-consumer": (True, False),
        "x-queue-mode": ("default", "lazy"),
    }
    found = {}
    for argument, (one, other) in arguments.items():
        name = session.name(argument)
        channel = session.channel()
        channel.queue(name, exclusive=True, arguments={argument: one})
        found[argument] = [
            channel.talk.channel().declare(name, exclusive=True, arguments={argument: other}),
            channel.talk.channel().declare(name, exclusive=True),
        ]
    return found


_WRONG: dict[str, dict[str, Any]] = {
    "ttl below 0": {"x-message-ttl": -1},
    "ttl as text": {"x-message-ttl": "100"},
    "ttl too large": {"x-message-ttl": 1 << 40},
    "expires 0": {"x-expires": 0},
    "expires as text": {"x-expires": "x"},
    "length below 0": {"x-max-length": -1},
    "length as text": {"x-max-length": "x"},
    "bytes below 0": {"x-max-length-bytes": -1},
    "overflow": {"x-overflow": "explode"},
    "dead letter exchange as number": {"x-dead-letter-exchange": 5},
    "dead letter key alone": {"x-dead-letter-routing-key": "key"},
    "priority too high": {"x-max-priority": 256},
    "priority below 0": {"x-max-priority": -1},
    "priority as text": {"x-max-priority": "x"},
    "single active as text": {"x-single-active-consumer": "x"},
    "mode": {"x-queue-mode": "crazy"},
    "type": {"x-queue-type": "tape"},
    "type as number": {"x-queue-type": 5},
    "delivery limit of a classic queue": {"x-delivery-limit": 5},
    "age of a classic queue": {"x-max-age": "1D"},
}


@scenario
def wrong_arguments_are_refused(session: Session) -> Any:
    return {
        title: session.channel().declare(session.name("q"), durable=True, arguments=arguments)
        for title, arguments in _WRONG.items()
    }


_QUORUM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it should be": ({"durable": True}, {}),
    "not durable": ({"durable": False}, {}),
    "exclusive": ({"durable": True, "exclusive": True}, {}),
    "auto_delete": ({"durable": True, "auto_delete": True}, {}),
    "priorities": ({"durable": True}, {"x-max-priority": 5}),
    "lazy": ({"durable": True}, {"x-queue-mode": "lazy"}),
    "limit as text": ({"durable": True}, {"x-delivery-limit": "x"}),
    "limit below 0": ({"durable": True}, {"x-delivery-limit": -1}),
    "reject-publish-dlx": ({"durable": True}, {"x-overflow": "reject-publish-dlx"}),
    "ttl": ({"durable": True}, {"x-message-ttl": 60_000}),
    "age": ({"durable": True}, {"x-max-age": "1D"}),
}


@scenario
def what_a_quorum_queue_cannot_be(session: Session) -> Any:
    return _of_type(session, "quorum", _QUORUM)


_STREAM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as it should be": ({"durable": True}, {}),
    "not durable": ({"durable": False}, {}),
    "exclusive": ({"durable": True, "exclusive": True}, {}),
    "auto_delete": ({"durable": True, "auto_delete": True}, {}),
    "age": ({"durable": True}, {"x-max-age": "1D"}),
    "wrong age": ({"durable": True}, {"x-max-age": "soon"}),
    "bytes": ({"durable": True}, {"x-max-length-bytes": 1_000_000}),
    "length": ({"durable": True}, {"x-max-length": 10}),
    "ttl": ({"durable": True}, {"x-message-ttl": 60_000}),
    "priorities": ({"durable": True}, {"x-max-priority": 5}),
    "dead letters": ({"durable": True}, {"x-dead-letter-exchange": "x"}),
}


@scenario
def what_a_stream_cannot_be(session: Session) -> Any:
    return _of_type(session, "stream", _STREAM)


def _of_type(session: Session, kind: str, cases: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> Any:
    found = {}
    for title, (options, arguments) in cases.items():
        channel = session.channel()
        name = session.name(title.replace(" ", "-"))
        found[title] = channel.declare(name, arguments=arguments | {"x-queue-type": kind}, **options)
        channel.talk.channel().delete(name)
    return found


@scenario
def an_exclusive_queue_is_its_connections_alone(session: Session) -> Any:
    name = session.name("q")
    owner = session.channel()
    owner.queue(name, exclusive=True)
    talk = session.talk()
    publisher = talk.channel().confirm()
    return {
        "declare": talk.channel().declare(name, exclusive=True),
        "declare as another": talk.channel().declare(name),
        "passive": talk.channel().declare(name, passive=True),
        "consume": talk.channel().consume(name),
        "get": talk.channel().get(name),
        "purge": talk.channel().purge(name),
        "bind": talk.channel().bind(name, "amq.direct", "key"),
        "unbind": talk.channel().unbind(name, "amq.direct", "key"),
        "delete": talk.channel().delete(name),
        "publish": publisher.publish("", name, "body", mandatory=True),
        "another channel of the owner": owner.talk.channel().get(name, no_ack=True)["body"],
    }


@scenario
def an_exclusive_queue_goes_with_its_connection(session: Session) -> Any:
    name = session.name("q")
    owner = session.channel()
    owner.queue(name, exclusive=True, durable=True)
    owner.talk.close()
    talk = session.talk()
    return until(lambda: _gone(talk.channel().declare(name, passive=True)))


def _gone(found: Any) -> Any:
    return found if isinstance(found, str) and found.startswith("channel 404") else None


@scenario
def auto_delete_goes_with_the_last_consumer(session: Session) -> Any:
    name = session.name("q")
    talk = session.talk()
    channel = talk.channel()
    channel.queue(name, auto_delete=True)
    found = [channel.declare(name, passive=True)]
    one, two = channel.consume(name), channel.consume(name)
    channel.cancel(one)
    found.append(channel.declare(name, passive=True))
    channel.cancel(two)
    found.append(until(lambda: _gone(talk.channel().declare(name, passive=True))))
    return found


@scenario
def auto_delete_goes_when_its_consumer_hangs_up(session: Session) -> Any:
    name = session.name("q")
    raw = session.raw()
    raw.channel()
    raw.ask(1, methods.Declare(name, auto_delete=True, durable=True))
    from weir.wire.amqp.methods import basic

    raw.ask(1, basic.Consume(name))
    raw.hang_up()
    talk = session.talk()
    return until(lambda: _gone(talk.channel().declare(name, passive=True)))


@scenario
def purge_drops_what_is_ready(session: Session) -> Any:
    channel = session.channel()
    name = channel.queue(session.name("q"), exclusive=True)
    channel.put(name, "1", "2", "3")
    channel.get(name)
    found = [channel.purge(name), channel.purge(name)]
    channel.nack(channel.tags[0])
    found.append(channel.until_count(name, 1))
    found.append(channel.talk.channel().purge(session.name("none")))
    return found


@scenario
def delete_tells_how_many_went(session: Session) -> Any:
    channel = session.channel()
    name = channel.queue(session.name("q"))
    channel.put(name, "1", "2")
    return [channel.delete(name), channel.delete(name), channel.declare(name), channel.delete(name)]


@scenario
def delete_if_empty_and_if_unused(session: Session) -> Any:
    talk = session.talk()
    channel = talk.channel()
    name = channel.queue(session.name("q"))
    channel.put(name, "1")
    found = [talk.channel().delete(name, if_empty=True)]
    channel.purge(name)
    tag = channel.consume(name)
    found.append(talk.channel().delete(name, if_unused=True))
    channel.cancel(tag)
    found.append(channel.delete(name, if_unused=True, if_empty=True))
    found.append(channel.delete(name, if_unused=True))
    return found


@scenario
def no_name_is_the_last_one_declared(session: Session) -> Any:
    channel = session.channel()
    name = channel.queue(session.name("q"), exclusive=True)
    exchange = session.name("x")
    channel.exchange(exchange, "direct")
    found = [channel.bind("", exchange, "")]
    channel.talk.confirming().publish(exchange, name, "by its name")
    found += [
        channel.count(name),
        channel.get("", no_ack=True),
        channel.purge(""),
        channel.declare("", passive=True),
    ]
    found.append(channel.delete(""))
    return found


@scenario
def no_name_before_any_was_declared(session: Session) -> Any:
    talk = session.talk()
    return [
        talk.channel().get(""),
        talk.channel().consume(""),
        talk.channel().bind("", "amq.direct", "key"),
        talk.channel().purge(""),
        talk.channel().delete(""),
    ]


@scenario
def no_wait_is_not_answered(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    name = session.name("q")
    raw.send(1, methods.Declare(name, exclusive=True, no_wait=True))
    raw.send(1, methods.Bind(name, "amq.direct", session.name("key"), no_wait=True))
    raw.send(1, methods.Purge(name, no_wait=True))
    found = [raw.ask(1, methods.Declare(name, passive=True))]
    raw.send(1, methods.Delete(name, no_wait=True))
    found.append(raw.ask(1, methods.Declare(name, passive=True)))
    return found


@scenario
def numbers_of_any_size_are_numbers(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    found = []
    for tag in "bsIlBui":
        name = session.name(tag)
        arguments = Table.of({"x-max-length": Field(tag, 100)})
        found.append([tag, raw.ask(1, methods.Declare(name, exclusive=True, arguments=arguments))["is"]])
        arguments = Table.of({"x-max-length": Field("l", 100)})
        found.append(raw.ask(1, methods.Declare(name, exclusive=True, arguments=arguments))["is"])
    return found


@scenario
def a_queue_expires_when_nobody_uses_it(session: Session) -> Any:
    talk = session.talk()
    name = session.name("q")
    channel = talk.channel()
    found = [channel.declare(name, durable=True, arguments={"x-expires": 300})]
    found.append(until(lambda: _gone(session_declare(session, name))))
    return found


def session_declare(session: Session, name: str) -> Any:
    """Ask without using it: its messages go to nowhere once it is gone."""
    talk = session.talk()
    try:
        found = talk.confirming().publish("", name, "body", mandatory=True)
        return "channel 404" if found == "returned" else found
    finally:
        talk.close()


@scenario
def a_queue_with_a_consumer_does_not_expire(session: Session) -> Any:
    name = session.name("q")
    channel = session.channel()
    channel.queue(name)
    tag = channel.consume(name)
    policy = session.name("policy")
    session.policy(policy, f"^{name}$", {"expires": 100})
    session.policy_of(name, policy)
    other = channel.queue(session.name("other"), arguments={"x-expires": 300})
    until(lambda: session_declare(session, other) == "channel 404")
    found = [channel.declare(name, passive=True)[2]]
    channel.cancel(tag)
    found.append(until(lambda: session_declare(session, name) == "channel 404"))
    return found


@scenario
def long_names_and_all_letters(session: Session) -> Any:
    channel = session.channel()
    found = []
    for name in ("ü€😀", "a b/c?d%e&f#g", "a-partition-3", "..", "x" * 200, "tab\there", "%2F"):
        unique = name + session.token
        declared = channel.declare(unique, durable=True)
        channel.put(unique, "body")
        found.append([declared, channel.take(unique), channel.delete(unique)])
    return found


@scenario
def what_another_connection_may_not_do_with_an_exclusive_queue(session: Session) -> Any:
    mine = session.channel()
    name = mine.queue(session.name("q"), exclusive=True)
    mine.bind(name, "amq.direct", "key")
    other = session.talk()
    return {
        "declare passively": other.channel().declare(name, passive=True),
        "bind": other.channel().bind(name, "amq.direct", "other"),
        "unbind": other.channel().unbind(name, "amq.direct", "key"),
        "unbind what is not bound": other.channel().unbind(name, "amq.direct", "none"),
        "unbind from no exchange": other.channel().unbind(name, session.name("none"), "key"),
        "purge": other.channel().purge(name),
        "get": other.channel().get(name),
        "consume": other.channel().consume(name),
        "delete": other.channel().delete(name),
        "publish": other.confirming().publish("amq.direct", "key", "1", mandatory=True),
        "own unbind": mine.unbind(name, "amq.direct", "key"),
        "left": mine.count(name),
    }


@scenario
def a_passive_declare_is_a_use(session: Session) -> Any:
    made = session.channel()
    used, unused = session.name("used"), session.name("unused")
    for name in (used, unused):
        made.queue(name, arguments={"x-expires": 3_000})
    confirming = made.talk.confirming()

    def gone(name: str) -> bool:
        return bool(confirming.publish("", name, "1", mandatory=True) == "returned")

    until(lambda: made.declare(used, passive=True) and gone(unused))
    return [gone(used), until(lambda: gone(used))]


@scenario
def line_breaks_are_no_part_of_declared_names(session: Session) -> Any:
    q, x = session.name("q"), session.name("x")
    broken_q, broken_x = f"\r{q[0]}\r\n{q[1:]}\n", f"{x}\r\n"
    raw = session.raw()
    raw.channel()

    def asked(method: Method) -> Any:
        found = raw.ask(1, method)
        if isinstance(found, str):
            raw.send(1, channel.CloseOk())
            raw.channel()
        return found

    found = {
        "declare": asked(methods.Declare(broken_q, exclusive=True)),
        "declare by the other name": asked(methods.Declare(q, exclusive=True)),
        "declare passively": asked(methods.Declare(broken_q, passive=True)),
        "exchange": asked(exchange.Declare(broken_x, "fanout")),
        "exchange by the other name": asked(exchange.Declare(x, "fanout")),
        "exchange passively": asked(exchange.Declare(broken_x, passive=True)),
        "bind": asked(methods.Bind(broken_q, x)),
        "bind to": asked(methods.Bind(q, broken_x)),
        "bind exchanges": asked(exchange.Bind(broken_x, "amq.fanout")),
        "bind exchanges to": asked(exchange.Bind("amq.fanout", broken_x)),
        "get": asked(basic.Get(broken_q)),
        "consume": asked(basic.Consume(broken_q, "tag")),
        "purge": asked(methods.Purge(broken_q)),
        "unbind": asked(methods.Unbind(broken_q, x)),
        "unbind from": asked(methods.Unbind(q, broken_x)),
    }
    for key, target in ((broken_q, ""), ("", broken_x)):
        raw.publish(1, basic.Publish(target, key, mandatory=True), b"1")
        found[f"publish to {target} with {key}"] = raw.hear() if not target else asked(basic.Qos())
    return found | {
        "delete": asked(methods.Delete(broken_q)),
        "queue is left": asked(methods.Declare(q, passive=True)),
        "delete exchange": asked(exchange.Delete(broken_x)),
        "exchange is left": asked(exchange.Declare(x, passive=True)),
        "only line breaks": asked(methods.Declare("\r\n", exclusive=True)),
        "only line breaks, passively": asked(methods.Declare("\r\n", passive=True)),
        "exchange of only line breaks": asked(exchange.Declare("\r\n", "direct")),
        "reserved behind a line break": asked(methods.Declare("\namq.mine")),
        "exchange reserved behind a line break": asked(exchange.Declare("\namq.mine", "direct")),
    }
