"""Consuming: tags, prefetch, acknowledgements, the order of what is given back, cancellation, direct replies."""

from typing import Any

from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import Channel, Talk, until

from weir.wire.amqp.methods import basic, channel, queue


def filled(session: Session, count: int, **options: Any) -> tuple[Channel, str]:
    """A queue with the messages 1, 2, ... and a channel of the connection that owns it."""
    made = session.channel()
    name = made.queue(session.name("q"), **({"exclusive": True} | options))
    made.put(name, *(str(number) for number in range(1, count + 1)))
    return made, name


@scenario
def get_takes_one_at_a_time(session: Session) -> Any:
    made, name = filled(session, 2)
    found = [made.get(name), made.get(name), made.get(name)]
    made.ack(made.tags[0])
    made.close()
    other = made.talk.channel()
    found.append(other.until_count(name, 1))
    found.append(other.get(name, no_ack=True))
    found.append(other.get(name, no_ack=True))
    return found


@scenario
def get_of_what_is_missing(session: Session) -> Any:
    return session.channel().get(session.name("none"))


@scenario
def consume_delivers_in_order(session: Session) -> Any:
    made, name = filled(session, 5)
    tag = made.consume(name)
    made.wait(5)
    made.ack(made.tags[-1], multiple=True)
    first = dict(made.deliveries[0])
    first.pop("raw")
    return [tag.startswith("ctag"), made.got, made.tags, first, made.until_count(name, 0)]


@scenario
def the_server_makes_consumer_tags(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    name = session.name("q")
    raw.ask(1, queue.Declare(name, exclusive=True))
    return [raw.ask(1, basic.Consume(name)), raw.ask(1, basic.Consume(name, "mine"))]


@scenario
def consume_of_what_is_missing(session: Session) -> Any:
    return session.channel().consume(session.name("none"))


@scenario
def no_ack_is_gone_when_delivered(session: Session) -> Any:
    made, name = filled(session, 3)
    made.qos(1)
    made.consume(name, no_ack=True)
    made.wait(3)
    made.close()
    return [made.got, made.talk.channel().count(name)]


@scenario
def an_exclusive_consumer_is_alone(session: Session) -> Any:
    made, name = filled(session, 0)
    talk = made.talk
    first = made.consume(name, exclusive=True, tag="first")
    found = [first, talk.channel().consume(name), talk.channel().consume(name, exclusive=True)]
    made.cancel(first)
    second = talk.channel()
    found.append(second.consume(name, tag="second"))
    found.append(talk.channel().consume(name, exclusive=True))
    return found


@scenario
def consumers_take_turns(session: Session) -> Any:
    made, name = filled(session, 0)
    one, two = made.talk.channel(), made.talk.channel()
    one.consume(name)
    two.consume(name)
    made.put(name, *"123456")
    one.wait(3)
    two.wait(3)
    return [one.got, two.got]


@scenario
def higher_priorities_are_served_first(session: Session) -> Any:
    made, name = filled(session, 0)
    low, high = made.talk.channel(), made.talk.channel()
    low.qos(10)
    high.qos(2)
    low.consume(name)
    high.consume(name, arguments={"x-priority": 10})
    made.put(name, *"12345")
    high.wait(2)
    low.wait(3)
    found = [high.quiet(), low.quiet()]
    high.ack(high.tags[0])
    high.sync()
    made.put(name, "6")
    high.wait(3)
    return [*found, high.got, low.quiet()]


@scenario
def a_consumers_priority_is_a_number(session: Session) -> Any:
    made, name = filled(session, 0)
    return made.consume(name, arguments={"x-priority": "high"})


# --- cancelling -----------------------------------------------------------------------------------------------


@scenario
def cancel_ends_deliveries_and_keeps_what_was_delivered(session: Session) -> Any:
    made, name = filled(session, 2)
    tag = made.consume(name, tag="mine")
    made.wait(2)
    found = [made.cancel(tag), made.cancel(tag)]
    made.put(name, "3")
    found += [made.quiet(), made.count(name)]
    found += [made.ack(made.tags[0]), made.nack(made.tags[1]), made.until_count(name, 2), made.take(name)]
    return found


@scenario
def cancel_of_an_unknown_tag_is_answered(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    return raw.ask(1, basic.Cancel("nobody"))


@scenario
def consumers_are_told_that_their_queue_is_gone(session: Session) -> Any:
    made, name = filled(session, 0)
    made.consume(name, tag="mine")
    made.talk.channel().delete(name)
    return made.until_cancelled()


@scenario
def only_those_who_understand_are_told(session: Session) -> Any:
    raw = session.raw(capabilities={})
    raw.channel()
    name = session.name("q")
    raw.ask(1, queue.Declare(name, exclusive=True))
    raw.ask(1, basic.Consume(name, "mine"))
    return [raw.ask(1, queue.Delete(name)), raw.ask(1, channel.Flow(True))]


# --- prefetch -------------------------------------------------------------------------------------------------


@scenario
def prefetch_of_each_consumer(session: Session) -> Any:
    made, name = filled(session, 6)
    made.qos(2)
    made.consume(name, tag="one")
    made.wait(2)
    made.consume(name, tag="two")
    made.wait(4)
    made.until_count(name, 2)
    found = [made.quiet()]
    made.ack(made.tags[0])
    made.wait(5)
    found.append([made.quiet(), [each["tag"] for each in made.deliveries]])
    return found


@scenario
def prefetch_of_the_channel(session: Session) -> Any:
    made, name = filled(session, 6)
    made.qos(3, whole=True)
    made.consume(name)
    made.consume(name)
    made.wait(3)
    made.until_count(name, 3)
    found = [made.quiet()]
    made.ack(made.tags[1], multiple=True)
    made.wait(5)
    found.append(made.quiet())
    return found


@scenario
def prefetch_of_the_channel_and_consumers_that_do_not_acknowledge(session: Session) -> Any:
    made, name = filled(session, 2)
    other = made.queue(session.name("other"), exclusive=True)
    made.put(other, "a", "b", "c")
    made.qos(2, whole=True)
    made.consume(other, no_ack=True)
    found: list[Any] = [made.wait(3)]
    made.consume(name)
    found.append(made.wait(5))
    made.put(other, "d", "e", "f")
    found += [made.quiet(), made.count(other)]
    made.ack(made.tags[3])
    found += [made.wait(8), made.count(other)]
    made.put(name, "3")
    found.append(made.wait(9))
    made.put(other, "g")
    found += [made.quiet(), made.count(other)]
    made.qos(3, whole=True)
    return [*found, made.wait(10)]


@scenario
def prefetch_of_both(session: Session) -> Any:
    made, name = filled(session, 8)
    made.qos(3)
    made.qos(4, whole=True)
    made.consume(name, tag="one")
    made.wait(3)
    made.until_count(name, 5)
    found = [made.quiet()]
    made.consume(name, tag="two")
    made.wait(4)
    made.until_count(name, 4)
    return [*found, made.quiet(), [each["tag"] for each in made.deliveries]]


@scenario
def prefetch_of_consumers_ends_that_of_the_channel(session: Session) -> Any:
    made, name = filled(session, 8)
    made.qos(4, whole=True)
    made.qos(3)
    made.consume(name, tag="one")
    made.consume(name, tag="two")
    made.wait(6)
    made.until_count(name, 2)
    return [len(made.quiet()), sorted(each["tag"] for each in made.deliveries)]


@scenario
def prefetch_holds_for_consumers_that_come_later(session: Session) -> Any:
    made, name = filled(session, 4)
    made.qos(1)
    made.consume(name)
    made.wait(1)
    made.qos(3)
    found = [made.quiet()]
    made.consume(name)
    made.wait(4)
    return [*found, made.quiet()]


@scenario
def prefetch_does_not_hold_for_get_and_no_ack(session: Session) -> Any:
    made, name = filled(session, 4)
    made.qos(1)
    found = [made.get(name)["body"], made.get(name)["body"]]
    made.consume(name, no_ack=True)
    return [*found, made.wait(2)]


@scenario
def the_channels_prefetch_can_be_raised(session: Session) -> Any:
    made, name = filled(session, 4)
    made.qos(1, whole=True)
    made.consume(name)
    made.wait(1)
    found = [made.quiet()]
    made.qos(3, whole=True)
    made.wait(3)
    found.append(made.quiet())
    made.qos(0, whole=True)
    return [*found, made.wait(4)]


# --- acknowledging --------------------------------------------------------------------------------------------


@scenario
def ack_of_one_and_of_many(session: Session) -> Any:
    made, name = filled(session, 6)
    made.consume(name)
    made.wait(6)
    found = [made.ack(2), made.ack(4, multiple=True), made.sync()]
    found.append(made.ack(0, multiple=True))
    found.append(made.sync())
    made.close()
    return [*found, made.talk.channel().count(name)]


@scenario
def unknown_delivery_tags_are_errors(session: Session) -> Any:
    found = {}
    for title in ("ack", "nack", "reject", "ack of many", "twice"):
        made, name = filled(session, 1)
        made.get(name)
        match title:
            case "ack":
                made.ack(9)
            case "nack":
                made.nack(9)
            case "reject":
                made.reject(9)
            case "ack of many":
                made.ack(9, multiple=True)
            case _:
                made.ack(1)
                made.ack(1)
        found[title] = made.sync()
        made.talk.channel().delete(name)
    return found


@scenario
def ack_of_none_with_many_is_no_error(session: Session) -> Any:
    made, _name = filled(session, 0)
    made.ack(0, multiple=True)
    found = [made.sync()]
    other = made.talk.channel()
    other.ack(0)
    return [*found, other.sync()]


@scenario
def no_ack_has_nothing_to_acknowledge(session: Session) -> Any:
    made, name = filled(session, 1)
    made.get(name, no_ack=True)
    made.ack(1)
    return made.sync()


@scenario
def rejected_ones_come_again_or_go(session: Session) -> Any:
    made, name = filled(session, 3)
    first = made.get(name)
    made.reject(first["tag"], requeue=True)
    second = until(lambda: _again(made, name))
    made.reject(second["tag"], requeue=False)
    return [first["body"], second["body"], made.until_count(name, 2), made.take(name)]


def _again(made: Channel, name: str) -> Any:
    found = made.get(name)
    if found["body"].endswith("*"):
        return found
    made.nack(found["tag"])
    return None


@scenario
def what_is_given_back_takes_its_old_place(session: Session) -> Any:
    made, name = filled(session, 6)
    for _ in range(4):
        made.get(name)
    made.nack(2)
    made.nack(1)
    made.nack(4)
    found = [made.until_count(name, 5), made.take(name)]
    made.nack(3)
    return [*found, made.until_count(name, 1), made.take(name)]


@scenario
def many_are_given_back_in_order(session: Session) -> Any:
    made, name = filled(session, 6)
    for _ in range(5):
        made.get(name)
    made.nack(4, multiple=True)
    return [made.until_count(name, 5), made.take(name)]


@scenario
def what_is_given_back_comes_before_what_is_newer(session: Session) -> Any:
    made, name = filled(session, 4)
    made.qos(2)
    made.consume(name)
    made.wait(2)
    made.nack(1)
    made.wait(3)
    found = list(made.got)
    made.nack(2)
    made.wait(4)
    return [*found, made.got[3:]]


@scenario
def what_a_closed_channel_had_comes_again(session: Session) -> Any:
    made, name = filled(session, 5)
    made.consume(name)
    made.wait(5)
    made.ack(2)
    made.sync()
    made.close()
    other = made.talk.channel()
    return [other.until_count(name, 4), other.take(name)]


@scenario
def what_a_lost_connection_had_comes_again(session: Session) -> Any:
    name = session.name("q")
    talk = session.talk()
    made = talk.channel()
    made.queue(name)
    made.put(name, "1", "2", "3")
    raw = session.raw()
    raw.channel()
    raw.send(1, basic.Consume(name, "mine"))
    raw.hear_all(4)
    raw.hang_up()
    found = [made.until_count(name, 3), made.take(name)]
    made.delete(name)
    return found


@scenario
def recover_gives_all_back(session: Session) -> Any:
    made, name = filled(session, 3)
    made.consume(name)
    made.wait(3)
    made.ack(2)
    found = [made.recover(requeue=True)]
    made.wait(5)
    return [*found, made.got, made.tags]


@scenario
def recover_async_is_not_answered(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    name = session.name("q")
    raw.ask(1, queue.Declare(name, exclusive=True))
    raw.publish(1, basic.Publish("", name), b"body")
    raw.ask(1, basic.Get(name))
    raw.send(1, basic.RecoverAsync(True))

    def again() -> Any:
        found = raw.ask(1, basic.Get(name))
        return found if found["is"] == "basic.get-ok" else None

    return until(again)


@scenario
def nack_on_a_channel_says_no_more_than_it_had(session: Session) -> Any:
    made, name = filled(session, 3)
    made.consume(name)
    made.wait(3)
    other = made.talk.channel()
    other.nack(1)
    found = [other.sync()]
    made.nack(3, multiple=True, requeue=False)
    made.sync()
    return [*found, made.count(name)]


@scenario
def a_message_that_was_returned_to_another_consumer_is_redelivered(session: Session) -> Any:
    made, name = filled(session, 2)
    one, two = made.talk.channel(), made.talk.channel()
    one.qos(2)
    one.consume(name)
    one.wait(2)
    two.consume(name)
    one.close()
    return [one.got, two.wait(2)]


# --- one active consumer --------------------------------------------------------------------------------------


@scenario
def a_single_active_consumer_is_followed_by_the_next(session: Session) -> Any:
    made, name = filled(session, 0, arguments={"x-single-active-consumer": True})
    one, two = made.talk.channel(), made.talk.channel()
    tag = one.consume(name)
    two.consume(name)
    made.put(name, "1", "2")
    one.wait(2)
    found = [one.quiet(), two.quiet()]
    one.cancel(tag)
    made.put(name, "3")
    two.wait(1)
    found.append(list(two.got))
    one.close()
    two.wait(3)
    return [*found, two.got]


@scenario
def a_single_active_consumer_is_not_exclusive(session: Session) -> Any:
    made, name = filled(session, 0, arguments={"x-single-active-consumer": True})
    return made.consume(name, exclusive=True)


# --- direct replies -------------------------------------------------------------------------------------------

_REPLIES = "amq.rabbitmq.reply-to"


@scenario
def a_reply_goes_straight_to_who_asked(session: Session) -> Any:
    server, name = filled(session, 0)
    client = session.channel()
    client.consume(_REPLIES, no_ack=True)
    client.publish("", name, "question", reply_to=_REPLIES, correlation_id="7")
    asked = until(lambda: server.get(name, no_ack=True))
    address = asked["properties"]["reply_to"]
    answering = server.talk.channel().confirm()
    said = answering.publish("", address, "answer", correlation_id="7")
    client.wait(1)
    delivered = dict(client.deliveries[0])
    delivered.pop("raw")
    return [
        address.startswith(f"{_REPLIES}."),
        said,
        delivered["body"],
        delivered["properties"],
        delivered["exchange"],
    ]


@scenario
def who_asks_for_replies_must_consume_first(session: Session) -> Any:
    talk = session.talk()
    asking = talk.channel()
    asking.publish("", session.name("none"), "question", reply_to=_REPLIES)
    return [
        asking.sync(),
        talk.channel().consume(_REPLIES, no_ack=False),
        _twice(talk),
    ]


def _twice(talk: Talk) -> Any:
    made = talk.channel()
    return [made.consume(_REPLIES, tag="a", no_ack=True), made.consume(_REPLIES, tag="b", no_ack=True)]


@scenario
def nobody_is_there_for_a_reply(session: Session) -> Any:
    server, name = filled(session, 0)
    client = session.channel()
    client.consume(_REPLIES, no_ack=True)
    client.publish("", name, "question", reply_to=_REPLIES)
    address = until(lambda: server.get(name, no_ack=True))["properties"]["reply_to"]
    found = [server.talk.channel().declare(address, passive=True)]
    client.talk.close()
    found.append(until(lambda: _refused(server.talk.channel().declare(address, passive=True))))
    found.append(server.talk.channel().confirm().publish("", address, "answer"))
    found.append(server.talk.channel().declare(_REPLIES, passive=True))
    return found


def _refused(found: Any) -> Any:
    return found if isinstance(found, str) else None
