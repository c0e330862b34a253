"""Exchanges: each type, what may be declared, and where messages go."""

from typing import Any

from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import Channel


def reached(channel: Channel, queues: dict[str, str]) -> dict[str, list[Any]]:
    """What is in each queue, by what the scenario calls it."""
    return {title: found for title, name in queues.items() if (found := channel.take(name))}


def queues(session: Session, channel: Channel, *titles: str) -> dict[str, str]:
    return {title: channel.queue(session.name(title), exclusive=True) for title in titles}


@scenario
def those_that_are_always_there(session: Session) -> Any:
    names = ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace", "")
    found = {}
    for name in names:
        found[name] = session.channel().exchange(name, "direct", passive=True)
    return found


@scenario
def every_type_is_declared_and_declared_again(session: Session) -> Any:
    channel = session.channel()
    return {
        kind: [channel.exchange(session.name(kind), kind, durable=durable) for durable in (True, True)]
        for kind in ("direct", "fanout", "topic", "headers")
    }


@scenario
def passive_finds_what_is_there_of_any_type(session: Session) -> Any:
    channel = session.channel()
    name = session.name("x")
    return [
        channel.exchange(name, "fanout"),
        channel.exchange(name, "topic", passive=True, durable=True),
        session.channel().exchange(session.name("y"), "fanout", passive=True),
    ]


@scenario
def inequivalent_declarations_are_refused(session: Session) -> Any:
    name = session.name("x")
    session.channel().exchange(name, "direct", durable=True)
    others: dict[str, dict[str, Any]] = {
        "type": {"kind": "fanout", "durable": True},
        "durable": {"durable": False},
        "auto_delete": {"durable": True, "auto_delete": True},
        "internal": {"durable": True, "internal": True},
        "alternate": {"durable": True, "arguments": {"alternate-exchange": "other"}},
        "other argument": {"durable": True, "arguments": {"x-mine": 1}},
    }
    return {title: session.channel().exchange(name, **options) for title, options in others.items()}


@scenario
def inequivalent_alternate_exchanges_are_refused(session: Session) -> Any:
    name = session.name("x")
    first, second = session.channel(), session.channel()
    first.exchange(name, arguments={"alternate-exchange": "one"})
    return [second.exchange(name), first.exchange(name, arguments={"alternate-exchange": "two"})]


@scenario
def names_of_the_broker_are_refused(session: Session) -> Any:
    return {
        "declare amq.": session.channel().exchange("amq.mine"),
        "declare an existing amq.": session.channel().exchange("amq.direct", "direct", durable=True),
        "declare the default": session.channel().exchange("", "direct", durable=True),
        "delete the default": session.channel().delete_exchange(""),
        "delete amq.": session.channel().delete_exchange("amq.direct"),
    }


@scenario
def the_default_exchange_cannot_be_bound(session: Session) -> Any:
    channel = session.channel()
    name = channel.queue(session.name("q"), exclusive=True)
    found = [channel.bind(name, "", "key")]
    channel = channel.talk.channel()
    found.append(channel.unbind(name, "", name))
    channel = channel.talk.channel()
    found.append(channel.bind_exchange("", "amq.direct", "key"))
    channel = channel.talk.channel()
    found.append(channel.bind_exchange("amq.direct", "", "key"))
    return found


@scenario
def what_is_missing_is_not_found(session: Session) -> Any:
    talk = session.talk()
    name, none = talk.channel().queue(session.name("q"), exclusive=True), session.name("none")
    published = talk.channel()
    published.publish(none, "key", "body")
    return {
        "publish": published.sync(),
        "bind to an exchange": talk.channel().bind(name, none, "key"),
        "bind a queue": talk.channel().bind(none, "amq.direct", "key"),
        "bind exchanges": talk.channel().bind_exchange(none, "amq.direct", "key"),
        "bind exchanges from": talk.channel().bind_exchange("amq.direct", none, "key"),
        "unbind": talk.channel().unbind(name, none, "key"),
        "unbind a queue": talk.channel().unbind(none, "amq.direct", "key"),
        "unbind what was not bound": talk.channel().unbind(name, "amq.direct", "key"),
        "unbind exchanges": talk.channel().unbind_exchange(none, "amq.direct", "key"),
        "delete": talk.channel().delete_exchange(none),
        "delete if unused": talk.channel().delete_exchange(none, if_unused=True),
    }


@scenario
def direct_by_the_key(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "a", "b", "both")
    exchange = session.name("x")
    channel.exchange(exchange, "direct")
    for title, keys in {"a": ["a"], "b": ["b"], "both": ["a", "b"]}.items():
        for key in keys:
            channel.bind(found[title], exchange, key)
    channel.confirm()
    said = [channel.publish(exchange, key, key, mandatory=True) for key in ("a", "b", "c", "")]
    return [said, reached(channel, found)]


@scenario
def fanout_to_all(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "a", "b", "none")
    exchange = session.name("x")
    channel.exchange(exchange, "fanout")
    channel.bind(found["a"], exchange, "one")
    channel.bind(found["a"], exchange, "two")
    channel.bind(found["b"], exchange)
    channel.confirm().publish(exchange, "anything", "body")
    return reached(channel, found)


_PATTERNS = (
    "#",
    "*",
    "a.*",
    "a.#",
    "*.b",
    "#.b",
    "a.*.c",
    "a.#.c",
    "*.*",
    "#.#",
    "a..b",
    "",
    "*.#",
    "a.b",
    "#.b.#",
    "a.",
)
_KEYS = ("", "a", "a.b", "a.b.c", "a.c", "a.x.y.c", "b", "x.b", "a..b", ".", "a.", "..", "b.b.b", "A.b", "a.*")


@scenario
def topic_by_patterns(session: Session) -> Any:
    channel = session.channel()
    exchange = session.name("x")
    channel.exchange(exchange, "topic")
    found = queues(session, channel, *(f"[{pattern}]" for pattern in _PATTERNS))
    for pattern in _PATTERNS:
        channel.bind(found[f"[{pattern}]"], exchange, pattern)
    channel.confirm()
    for key in _KEYS:
        channel.publish(exchange, key, f"<{key}>")
    return reached(channel, found)


_HEADERS: dict[str, dict[str, Any]] = {
    "all by default": {"a": 1, "b": "two"},
    "all": {"x-match": "all", "a": 1, "b": "two"},
    "any": {"x-match": "any", "a": 1, "b": "two"},
    "all-with-x": {"x-match": "all-with-x", "a": 1, "x-c": "three"},
    "any-with-x": {"x-match": "any-with-x", "a": 1, "x-c": "three"},
    "all without x": {"x-match": "all", "a": 1, "x-c": "three"},
    "any without x": {"x-match": "any", "a": 1, "x-c": "three"},
    "there at all": {"x-match": "all", "a": None},
    "nothing, all": {"x-match": "all"},
    "nothing, any": {"x-match": "any"},
    "text": {"x-match": "all", "a": "1"},
    "large": {"x-match": "all", "a": 1 << 40},
    "true": {"x-match": "all", "a": True},
}
_SENT: dict[str, dict[str, Any]] = {
    "none": {},
    "a": {"a": 1},
    "b": {"b": "two"},
    "a and b": {"a": 1, "b": "two"},
    "a and x-c": {"a": 1, "x-c": "three"},
    "x-c": {"x-c": "three"},
    "more": {"a": 1, "b": "two", "c": 3},
    "other a": {"a": 2, "b": "two"},
    "text": {"a": "1"},
    "large": {"a": 1 << 40},
    "true": {"a": True},
    "void": {"a": None},
}


@scenario
def headers_by_all_forms_of_x_match(session: Session) -> Any:
    channel = session.channel()
    exchange = session.name("x")
    channel.exchange(exchange, "headers")
    found = queues(session, channel, *_HEADERS)
    for title, arguments in _HEADERS.items():
        channel.bind(found[title], exchange, arguments=arguments)
    channel.confirm()
    for title, headers in _SENT.items():
        channel.publish(exchange, "ignored", title, headers=headers)
    channel.publish(exchange, "ignored", "no headers at all")
    return reached(channel, found)


@scenario
def a_wrong_x_match_is_refused(session: Session) -> Any:
    talk = session.talk()
    name = talk.channel().queue(session.name("q"), exclusive=True)
    return [
        talk.channel().bind(name, "amq.headers", arguments={"x-match": "some"}),
        talk.channel().bind(name, "amq.headers", arguments={"x-match": 1}),
    ]


@scenario
def a_binding_is_there_once_for_key_and_arguments(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "q")
    exchange = session.name("x")
    channel.exchange(exchange, "direct")
    channel.confirm()
    for _ in range(2):
        channel.bind(found["q"], exchange, "key")
    channel.bind(found["q"], exchange, "key", arguments={"n": 1})
    channel.publish(exchange, "key", "once")
    channel.unbind(found["q"], exchange, "key")
    said = [channel.publish(exchange, "key", "still", mandatory=True)]
    channel.unbind(found["q"], exchange, "key", arguments={"n": 2})
    said.append(channel.publish(exchange, "key", "still", mandatory=True))
    channel.unbind(found["q"], exchange, "key", arguments={"n": 1})
    said.append(channel.publish(exchange, "key", "no more", mandatory=True))
    return [said, reached(channel, found)]


@scenario
def the_default_exchange_reaches_every_queue_by_its_name(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "q")
    channel.confirm()
    said = [channel.publish("", found["q"], "body", mandatory=True)]
    said.append(channel.publish("", session.name("other"), "body", mandatory=True))
    return [said, reached(channel, found)]


@scenario
def exchanges_are_bound_to_exchanges(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "a", "b")
    first, second = session.name("first"), session.name("second")
    channel.exchange(first, "topic")
    channel.exchange(second, "direct")
    said = [channel.bind_exchange(second, first, "x.#"), channel.bind_exchange(second, first, "x.#")]
    channel.bind(found["a"], second, "x.a")
    channel.bind(found["b"], first, "#")
    channel.confirm()
    channel.publish(first, "x.a", "both")
    channel.publish(first, "x.b", "b alone")
    channel.publish(second, "x.a", "a alone")
    said.append(channel.unbind_exchange(second, first, "x.#"))
    channel.publish(first, "x.a", "b after")
    return [said, reached(channel, found)]


@scenario
def a_ring_of_exchanges_delivers_once(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "q")
    names = [session.name(f"x{number}") for number in range(3)]
    for name in names:
        channel.exchange(name, "fanout")
    for number, name in enumerate(names):
        channel.bind_exchange(names[(number + 1) % 3], name)
        channel.bind(found["q"], name)
    channel.bind_exchange(names[0], names[0])
    said = channel.confirm().publish(names[0], "", "once", mandatory=True)
    return [said, reached(channel, found)]


@scenario
def the_alternate_exchange_gets_what_has_no_route(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "routed", "rest")
    first, second, third = (session.name(name) for name in ("first", "second", "third"))
    channel.exchange(third, "fanout")
    channel.exchange(second, "direct", arguments={"alternate-exchange": third})
    channel.exchange(first, "direct", arguments={"alternate-exchange": second})
    channel.bind(found["routed"], first, "a")
    channel.confirm()
    said = [channel.publish(first, "a", "a", mandatory=True), channel.publish(first, "b", "b", mandatory=True)]
    said.append(channel.publish(first, "b", "lost", mandatory=True))
    channel.bind(found["rest"], third)
    said.append(channel.publish(first, "b", "rest", mandatory=True))
    (one,) = [channel.get(found["rest"], no_ack=True)]
    return [said, reached(channel, found), one]


@scenario
def a_missing_or_circular_alternate_exchange_is_none(session: Session) -> Any:
    channel = session.channel()
    first, second, lonely = (session.name(name) for name in ("first", "second", "lonely"))
    channel.exchange(first, "direct", arguments={"alternate-exchange": second})
    channel.exchange(second, "direct", arguments={"alternate-exchange": first})
    channel.exchange(lonely, "direct", arguments={"alternate-exchange": session.name("none")})
    channel.confirm()
    return [channel.publish(name, "key", "body", mandatory=True) for name in (first, lonely)]


@scenario
def an_alternate_exchange_is_a_name(session: Session) -> Any:
    return session.channel().exchange(session.name("x"), arguments={"alternate-exchange": 5})


@scenario
def an_internal_exchange_is_not_published_to(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "q")
    inner, outer = session.name("inner"), session.name("outer")
    channel.exchange(inner, "fanout", internal=True)
    channel.exchange(outer, "fanout")
    channel.bind_exchange(inner, outer)
    channel.bind(found["q"], inner)
    channel.confirm().publish(outer, "", "through")
    other = channel.talk.channel()
    other.publish(inner, "", "refused")
    return [other.sync(), reached(channel, found)]


@scenario
def delete_if_unused(session: Session) -> Any:
    talk = session.talk()
    channel = talk.channel()
    name, source = session.name("x"), session.name("source")
    channel.exchange(name, "fanout")
    channel.exchange(source, "fanout")
    queue = channel.queue(session.name("q"), exclusive=True)
    channel.bind(queue, name)
    found = [talk.channel().delete_exchange(name, if_unused=True)]
    channel.unbind(queue, name)
    channel.bind_exchange(name, source)
    found.append(channel.delete_exchange(name, if_unused=True))
    found.append(talk.channel().exchange(name, "fanout", passive=True))
    return found


@scenario
def deleting_an_exchange_takes_its_bindings(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "q")
    name = session.name("x")
    channel.exchange(name, "direct")
    channel.bind(found["q"], name, "key")
    said = [channel.delete_exchange(name), channel.exchange(name, "direct")]
    said.append(channel.confirm().publish(name, "key", "body", mandatory=True))
    return said


@scenario
def auto_delete_goes_with_the_last_binding(session: Session) -> Any:
    talk = session.talk()
    channel = talk.channel()
    name = session.name("x")
    channel.exchange(name, "direct", auto_delete=True)
    one = channel.queue(session.name("one"), exclusive=True)
    two = channel.queue(session.name("two"), exclusive=True)
    channel.bind(one, name, "key")
    channel.bind(two, name, "key")
    channel.unbind(one, name, "key")
    found = [channel.exchange(name, "direct", passive=True)]
    channel.delete(two)
    found.append(channel.exchange(name, "direct", passive=True))
    return found


@scenario
def auto_delete_goes_with_the_last_binding_of_an_exchange(session: Session) -> Any:
    talk = session.talk()
    channel = talk.channel()
    source, to = session.name("source"), session.name("to")
    channel.exchange(source, "fanout", auto_delete=True)
    channel.exchange(to, "fanout")
    channel.bind_exchange(to, source)
    found = [channel.exchange(source, "fanout", passive=True)]
    channel.delete_exchange(to)
    found.append(channel.exchange(source, "fanout", passive=True))
    return found


@scenario
def copies_by_cc_and_bcc(session: Session) -> Any:
    channel = session.channel()
    found = queues(session, channel, "to", "cc", "bcc")
    channel.confirm().publish(
        "", found["to"], "body", headers={"CC": [found["cc"], found["to"]], "BCC": [found["bcc"]], "mine": 1}
    )
    return {
        title: (one["key"], one["properties"]) if isinstance(one := channel.get(name, no_ack=True), dict) else one
        for title, name in found.items()
    }


@scenario
def cc_must_be_a_list(session: Session) -> Any:
    channel = session.channel()
    channel.publish("", session.name("q"), "body", headers={"CC": "text"})
    return channel.sync()
