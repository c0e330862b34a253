"""Policies: patterns that give rules to queues and exchanges, beside what their arguments say."""

from typing import Any

from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import until


def pattern(session: Session) -> str:
    return f"^q.*{session.token[1:]}"


@scenario
def a_policy_holds_for_queues_that_are_there_and_those_that_come(session: Session) -> Any:
    made = session.channel()
    before = made.queue(session.name("q1"))
    name = session.name("policy")
    found = [session.policy(name, pattern(session), {"max-length": 2})]
    session.policy_of(before, name)
    after = made.queue(session.name("q2"))
    session.policy_of(after, name)
    for queue in (before, after):
        made.put(queue, *"123")
        made.until_count(queue, 2)
        found.append(made.take(queue))
    found.append(session.clear_policy(name))
    session.policy_of(before, None)
    made.put(before, *"123")
    found.append(made.take(before))
    return [*found, made.delete(before), made.delete(after)]


@scenario
def of_a_policy_and_an_argument_the_lower_holds(session: Session) -> Any:
    made = session.channel()
    name = session.name("policy")
    session.policy(name, pattern(session), {"max-length": 2})
    found = []
    for limit in (1, 3):
        queue = made.queue(session.name(f"q{limit}"), arguments={"x-max-length": limit})
        session.policy_of(queue, name)
        made.put(queue, *"12345")
        made.until_count(queue, min(limit, 2))
        found.append(made.take(queue))
        made.delete(queue)
    return found


@scenario
def of_several_policies_the_highest_holds_alone(session: Session) -> Any:
    made = session.channel()
    low, high = session.name("low"), session.name("high")
    session.policy(low, pattern(session), {"max-length": 1, "message-ttl": 1}, priority=1)
    session.policy(high, pattern(session), {"max-length": 2}, priority=2)
    queue = made.queue(session.name("q"))
    session.policy_of(queue, high)
    made.put(queue, *"123")
    made.until_count(queue, 2)
    found = [made.take(queue)]
    session.clear_policy(high)
    session.policy_of(queue, low)
    made.put(queue, "1")
    return [*found, made.until_count(queue, 0), made.delete(queue)]


@scenario
def a_policy_gives_time_to_live_and_dead_letters(session: Session) -> Any:
    made = session.channel()
    dead = made.queue(session.name("dead"), exclusive=True)
    name = session.name("policy")
    definition = {"message-ttl": 50, "dead-letter-exchange": "", "dead-letter-routing-key": dead}
    session.policy(name, pattern(session), definition)
    queue = made.queue(session.name("q"))
    session.policy_of(queue, name)
    made.put(queue, "1")
    found = until(lambda: made.get(dead, no_ack=True))
    made.delete(queue)
    return [found["body"], found["properties"]["headers"]["x-first-death-reason"]]


@scenario
def a_policy_expires_queues(session: Session) -> Any:
    made = session.channel()
    name = session.name("policy")
    session.policy(name, pattern(session), {"expires": 100})
    queue = made.queue(session.name("q"))
    other = session.talk().confirming()
    return until(lambda: other.publish("", queue, "body", mandatory=True) == "returned")


@scenario
def a_policy_gives_an_exchange_its_alternate(session: Session) -> Any:
    made = session.channel()
    queue = made.queue(session.name("rest"), exclusive=True)
    exchange = session.name("q-exchange")
    other = session.name("other")
    made.exchange(other, "fanout")
    made.bind(queue, other)
    made.exchange(exchange, "direct")
    session.policy(session.name("policy"), pattern(session), {"alternate-exchange": other}, apply_to="exchanges")
    channel = made.talk.channel().confirm()
    found = until(lambda: channel.publish(exchange, "none", "body", mandatory=True) == "ack")
    return [found, made.count(queue)]


@scenario
def wrong_policies_are_refused(session: Session) -> Any:
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "pattern": ("(", {"max-length": 1}),
        "nothing": ("^never", {}),
        "unknown": ("^never", {"no-such-thing": 1}),
        "length": ("^never", {"max-length": -1}),
        "ttl": ("^never", {"message-ttl": "x"}),
        "overflow": ("^never", {"overflow": "explode"}),
    }
    return {
        title: session.policy(session.name("policy"), text, definition)
        for title, (text, definition) in cases.items()
    }


@scenario
def overflow_by_policy(session: Session) -> Any:
    made = session.channel()
    name = session.name("policy")
    session.policy(name, pattern(session), {"max-length": 1, "overflow": "reject-publish"})
    queue = made.queue(session.name("q"))
    session.policy_of(queue, name)
    channel = made.talk.channel().confirm()
    found = [channel.publish("", queue, body) for body in "12"]
    return [found, made.take(queue), made.delete(queue)]
