"""What queues do by their arguments and policies: time to live, lengths, dead letters, priorities, limits."""

from typing import Any

from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import Channel, until


def letters(session: Session, channel: Channel, arguments: dict[str, Any], **options: Any) -> tuple[str, str]:
    """A queue with these arguments whose dead letters go to another one; both names."""
    dead = channel.queue(session.name("dead"), exclusive=True)
    name = channel.queue(
        session.name("q"),
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead} | arguments,
        **({"exclusive": True} | options),
    )
    return name, dead


def without_times(found: Any) -> Any:
    """A message with the moments of its deaths taken out."""
    if isinstance(found, dict):
        for death in found["properties"].get("headers", {}).get("x-death", []):
            death.pop("time", None)
    return found


# --- time to live ---------------------------------------------------------------------------------------------


@scenario
def messages_die_of_age(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-message-ttl": 100})
    made.put(name, "1", "2")
    return [made.until_count(name, 0), made.get(name)]


@scenario
def messages_die_by_their_own_expiration(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True)
    made.put(name, "1", "2", expiration="100")
    made.put(name, "3")
    return [made.until_count(name, 1), made.take(name)]


@scenario
def the_shorter_life_counts(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {"x-message-ttl": 100})
    made.put(name, "long", expiration="600000")
    first = without_times(until(lambda: made.get(dead, no_ack=True)))
    other = made.queue(session.name("other"), exclusive=True, arguments={"x-message-ttl": 600_000})
    made.put(other, "short", expiration="100")
    return [first, made.until_count(other, 0)]


@scenario
def an_expired_message_behind_one_that_lives_is_counted_until_it_is_first(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {})
    marker = made.queue(session.name("marker"), exclusive=True)
    made.put(name, "stays")
    made.put(name, "expired", expiration="50")
    made.put(marker, "expired", expiration="150")
    made.until_count(marker, 0)
    found = [made.count(name), made.count(dead)]
    found.append(made.get(name, no_ack=True)["body"])
    found.append(made.until_count(dead, 1))
    return [*found, made.count(name)]


@scenario
def a_life_of_nothing_is_for_those_who_wait(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-message-ttl": 0})
    made.put(name, "1")
    found = [made.until_count(name, 0)]
    made.consume(name, no_ack=True)
    made.put(name, "2")
    return [*found, made.wait(1)]


@scenario
def what_is_with_a_consumer_does_not_expire(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {"x-message-ttl": 100})
    made.qos(1)
    tag = made.consume(name)
    made.put(name, "1")
    made.wait(1)
    made.put(name, "2")
    found = [made.until_count(dead, 1), made.take(dead)]
    made.cancel(tag)
    made.nack(made.tags[0])
    return [*found, made.until_count(dead, 1), made.take(dead), made.count(name)]


# --- lengths --------------------------------------------------------------------------------------------------


@scenario
def the_oldest_go_when_there_are_too_many(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-max-length": 3})
    made.put(name, *"12345")
    return [made.until_count(name, 3), made.take(name)]


@scenario
def unconfirmed_ones_that_are_too_many_are_gone_when_it_is_looked_at(session: Session) -> Any:
    found = {}
    kinds: dict[str, dict[str, Any]] = {
        "exclusive": {"exclusive": True},
        "durable": {"durable": True},
        "bytes": {"durable": True, "arguments": {"x-max-length-bytes": 3}},
    }
    for kind, options in kinds.items():
        made = session.channel()
        name = made.queue(session.name(kind), **({"arguments": {"x-max-length": 3}} | options))
        for number in range(10):
            made.publish("", name, str(number))
        few = [made.count(name) <= 3]
        for number in range(10):
            made.publish("", name, str(number))
        first = made.get(name, no_ack=True)
        for number in range(10):
            made.publish("", name, str(number), delivery_mode=2)
        few.append(made.count(name) <= 3)
        found[kind] = [*few, first["body"], first["left"], made.take(name)]
        made.delete(name)
    return found


@scenario
def what_is_with_a_consumer_does_not_count(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-max-length": 2})
    made.put(name, *"12")
    one, two = made.get(name), made.get(name)
    made.put(name, *"34")
    found = [made.count(name)]
    made.nack(one["tag"])
    made.nack(two["tag"])
    return [*found, made.until_count(name, 2), made.take(name)]


@scenario
def the_oldest_go_when_they_are_too_large(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-max-length-bytes": 25})
    made.put(name, *("a" * 10, "b" * 10, "c" * 10))
    found = [made.until_count(name, 2), made.take(name)]
    made.put(name, "d" * 30)
    return [*found, made.until_count(name, 0)]


@scenario
def a_length_of_nothing_keeps_nothing(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-max-length": 0})
    made.put(name, "1")
    found = [made.until_count(name, 0)]
    made.consume(name, no_ack=True)
    made.put(name, "2")
    return [*found, made.wait(1)]


@scenario
def dropped_ones_are_dead_letters(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {"x-max-length": 1})
    made.put(name, "1", "2")
    return [without_times(until(lambda: made.get(dead, no_ack=True))), made.take(name)]


@scenario
def a_full_queue_refuses_publishers(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {"x-max-length": 1, "x-overflow": "reject-publish"})
    channel = made.talk.channel().confirm()
    said = [channel.publish("", name, body) for body in "123"]
    return [said, made.take(name), made.take(dead), channel.publish("", name, "4")]


@scenario
def a_full_queue_refuses_and_dead_letters(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    channel = made.talk.channel().confirm()
    said = [channel.publish("", name, body) for body in "12"]
    return [said, without_times(until(lambda: made.get(dead, no_ack=True))), made.take(name)]


@scenario
def a_full_queue_among_others_refuses_for_all(session: Session) -> Any:
    made = session.channel()
    full = made.queue(
        session.name("full"), exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    other = made.queue(session.name("other"), exclusive=True)
    exchange = session.name("x")
    made.exchange(exchange, "fanout")
    made.bind(full, exchange)
    made.bind(other, exchange)
    channel = made.talk.channel().confirm()
    said = [channel.publish(exchange, "", body) for body in "12"]
    return [said, made.take(full), made.take(other)]


# --- dead letters ---------------------------------------------------------------------------------------------


@scenario
def rejected_ones_are_dead_letters(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {})
    made.put(name, "1", headers={"mine": 1}, expiration="600000", delivery_mode=2)
    made.reject(made.get(name)["tag"], requeue=False)
    return without_times(until(lambda: made.get(dead, no_ack=True)))


@scenario
def expired_ones_are_dead_letters(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {})
    made.put(name, "1", expiration="50")
    return without_times(until(lambda: made.get(dead, no_ack=True)))


@scenario
def a_dead_letter_keeps_its_key_if_no_other_is_given(session: Session) -> Any:
    made = session.channel()
    exchange = session.name("x")
    made.exchange(exchange, "fanout")
    dead = made.queue(session.name("dead"), exclusive=True)
    made.bind(dead, exchange)
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-dead-letter-exchange": exchange})
    made.bind(name, "amq.topic", f"a.{session.name('b')}")
    made.talk.confirming().publish(
        "amq.topic", f"a.{session.name('b')}", "1", headers={"CC": [session.name("none")]}
    )
    made.reject(made.get(name)["tag"], requeue=False)
    return without_times(until(lambda: made.get(dead, no_ack=True)))


@scenario
def dead_letters_to_nowhere_are_gone(session: Session) -> Any:
    made = session.channel()
    name = made.queue(
        session.name("q"), exclusive=True, arguments={"x-dead-letter-exchange": session.name("none")}
    )
    made.put(name, "1", "2")
    made.reject(made.get(name)["tag"], requeue=False)
    return [made.sync(), made.until_count(name, 1), made.take(name)]


@scenario
def deaths_are_counted_by_queue_and_reason(session: Session) -> Any:
    made = session.channel()
    first, second = session.name("first"), session.name("second")
    made.queue(
        first, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second}
    )
    made.queue(
        second, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": first}
    )
    made.put(first, "1")
    for name in (first, second, first):
        made.reject(until(lambda name=name: made.get(name))["tag"], requeue=False)
    return without_times(until(lambda: made.get(second)))


@scenario
def a_ring_of_expiry_ends(session: Session) -> Any:
    made = session.channel()
    first, second = session.name("first"), session.name("second")
    for name, other in ((first, second), (second, first)):
        made.queue(
            name,
            exclusive=True,
            arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other},
        )
    made.put(first, "1")
    until(lambda: made.count(first) + made.count(second) == 0)
    watch = made.queue(session.name("watch"), exclusive=True)
    made.put(watch, "1", expiration="200")
    made.until_count(watch, 0)
    return [made.count(first), made.count(second)]


@scenario
def an_expired_one_may_come_back_after_it_was_rejected(session: Session) -> Any:
    made = session.channel()
    first, second = session.name("first"), session.name("second")
    made.queue(
        first, exclusive=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second}
    )
    made.queue(
        second,
        exclusive=True,
        arguments={"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": first},
    )
    made.put(first, "1")
    for _ in range(2):
        made.reject(until(lambda: made.get(first))["tag"], requeue=False)
    return without_times(until(lambda: made.get(first)))


@scenario
def a_deleted_or_purged_queue_has_no_dead_letters(session: Session) -> Any:
    made = session.channel()
    name, dead = letters(session, made, {})
    made.put(name, "1", "2")
    found = [made.purge(name)]
    made.put(name, "3")
    return [*found, made.delete(name), made.count(dead)]


# --- priorities -----------------------------------------------------------------------------------------------


@scenario
def higher_priorities_come_first(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-max-priority": 5})
    for number, priority in enumerate([0, 5, 1, 9, None, 3, 5, 1]):
        made.put(name, f"{number}:{priority}", **({} if priority is None else {"priority": priority}))
    return made.take(name)


@scenario
def priorities_mean_nothing_to_other_queues(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True)
    for priority in (0, 5, 1):
        made.put(name, str(priority), priority=priority)
    return made.take(name)


@scenario
def what_is_given_back_keeps_its_priority(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-max-priority": 5})
    for body, priority in (("a", 1), ("b", 2), ("c", 2), ("d", 1)):
        made.put(name, body, priority=priority)
    first, second = made.get(name), made.get(name)
    made.nack(second["tag"])
    made.nack(first["tag"])
    return [first["body"], second["body"], made.until_count(name, 4), made.take(name)]


@scenario
def what_would_come_first_is_dropped_first(session: Session) -> Any:
    made = session.channel()
    name = made.queue(session.name("q"), exclusive=True, arguments={"x-max-priority": 5, "x-max-length": 2})
    for body, priority in (("a", 5), ("b", 1), ("c", 3)):
        made.put(name, body, priority=priority)
    return [made.until_count(name, 2), made.take(name)]


# --- quorum queues --------------------------------------------------------------------------------------------


def quorum(session: Session, made: Channel, **arguments: Any) -> str:
    return made.queue(session.name("quorum"), durable=True, arguments={"x-queue-type": "quorum"} | arguments)


@scenario
def a_message_delivered_too_often_is_dropped(session: Session) -> Any:
    made = session.channel()
    dead = made.queue(session.name("dead"), exclusive=True)
    limits = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    name = quorum(session, made, **limits)
    made.put(name, "1")
    found = []
    for _ in range(3):
        one = until(lambda: made.get(name))
        found.append([one["body"], one["properties"].get("headers")])
        made.nack(one["tag"])
    found.append(without_times(until(lambda: made.get(dead, no_ack=True))))
    made.delete(name)
    return found


@scenario
def a_quorum_queue_counts_deliveries(session: Session) -> Any:
    made = session.channel()
    name = quorum(session, made)
    made.put(name, "1", "2")
    found = []
    for _ in range(3):
        one = until(lambda: made.get(name))
        found.append([one["body"], one["properties"].get("headers")])
        made.nack(one["tag"])
        made.until_count(name, 2)
    made.delete(name)
    return found


@scenario
def a_quorum_queue_gives_back_to_the_old_place(session: Session) -> Any:
    made = session.channel()
    name = quorum(session, made)
    made.put(name, *"1234")
    for _ in range(3):
        until(lambda: made.get(name))
    made.nack(made.tags[1])
    made.nack(made.tags[0])
    made.until_count(name, 3)
    found = made.take(name)
    made.delete(name)
    return found


@scenario
def a_quorum_queue_rejects_to_dead_letters(session: Session) -> Any:
    made = session.channel()
    dead = made.queue(session.name("dead"), exclusive=True)
    name = quorum(session, made, **{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    made.put(name, "1")
    made.reject(until(lambda: made.get(name))["tag"], requeue=False)
    found = without_times(until(lambda: made.get(dead, no_ack=True)))
    made.delete(name)
    return found


@scenario
def a_quorum_queue_has_no_global_prefetch(session: Session) -> Any:
    made = session.channel()
    name = quorum(session, made)
    made.qos(1, whole=True)
    found = made.consume(name)
    made.talk.channel().delete(name)
    return found
