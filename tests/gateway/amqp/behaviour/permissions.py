"""Who may do what: users with patterns for configure, write and read, and what each word is refused with."""

from collections.abc import Callable
from typing import Any

from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import Channel


class Limited:
    """A user whose rights are for names that begin with `mine`; and one who may do everything, to prepare."""

    def __init__(self, session: Session, configure: str = "", write: str = "", read: str = "") -> None:
        self._session = session
        self.name = session.name("user")
        session.user(self.name, configure=configure, write=write, read=read)
        self.everything = session.channel()
        self._talk = session.talk(user=self.name, password="secret")

    def may(self, **calls: Callable[[Channel], Any]) -> dict[str, Any]:
        """What comes of each call, on a channel of its own."""
        return {name.replace("_", " "): call(self._talk.channel()) for name, call in calls.items()}


def published(channel: Channel, exchange: str, key: str) -> Any:
    channel.publish(exchange, key, "x")
    return channel.sync()


@scenario
def nothing_is_granted(session: Session) -> Any:
    user = Limited(session)
    queue = user.everything.queue(session.name("q"), durable=True)
    exchange = session.name("x")
    user.everything.exchange(exchange, "fanout")
    found = user.may(
        declare=lambda c: c.declare(queue, durable=True),
        declare_another=lambda c: c.declare(session.name("other")),
        declare_passively=lambda c: c.declare(queue, passive=True),
        delete=lambda c: c.delete(queue),
        purge=lambda c: c.purge(queue),
        consume=lambda c: c.consume(queue),
        get=lambda c: c.get(queue),
        bind=lambda c: c.bind(queue, exchange),
        unbind=lambda c: c.unbind(queue, exchange),
        publish=lambda c: published(c, exchange, ""),
        publish_to_the_default_exchange=lambda c: published(c, "", queue),
        declare_an_exchange=lambda c: c.exchange(session.name("y")),
        declare_an_exchange_passively=lambda c: c.exchange(exchange, passive=True),
        delete_an_exchange=lambda c: c.delete_exchange(exchange),
        bind_exchanges=lambda c: c.bind_exchange(exchange, "amq.fanout"),
    )
    return [found, user.everything.delete(queue), user.everything.delete_exchange(exchange)]


@scenario
def configure_is_for_what_comes_and_goes(session: Session) -> Any:
    user = Limited(session, configure="^mine")
    mine, other = session.name("mine"), session.name("other")
    return user.may(
        declare=lambda c: c.declare(mine),
        declare_another=lambda c: c.declare(other),
        consume=lambda c: c.consume(mine),
        publish=lambda c: published(c, "", mine),
        declare_an_exchange=lambda c: c.exchange(mine),
        publish_there=lambda c: published(c, mine, ""),
        delete_the_exchange=lambda c: c.delete_exchange(mine),
        delete=lambda c: c.delete(mine),
    )


@scenario
def write_is_for_exchanges_and_what_is_bound_to_them(session: Session) -> Any:
    user = Limited(session, write="^(mine|$)")
    mine, other = session.name("mine"), session.name("other")
    for name in (mine, other):
        user.everything.queue(name)
        user.everything.exchange(name, "fanout")
    found = user.may(
        publish=lambda c: published(c, mine, ""),
        publish_elsewhere=lambda c: published(c, other, ""),
        get=lambda c: c.get(mine),
        purge=lambda c: c.purge(mine),
        bind_to_what_one_may_not_read=lambda c: c.bind(mine, mine),
        bind_what_one_may_not_write=lambda c: c.bind(other, mine),
        delete=lambda c: c.delete(mine),
    )
    for name in (mine, other):
        user.everything.delete(name)
        user.everything.delete_exchange(name)
    return found


@scenario
def read_is_for_queues_and_what_they_are_bound_to(session: Session) -> Any:
    user = Limited(session, read="^mine", write="^mine")
    mine, other = session.name("mine"), session.name("other")
    for name in (mine, other):
        user.everything.queue(name)
        user.everything.exchange(name, "fanout")
    user.everything.put(mine, "1")
    found = user.may(
        get=lambda c: c.get(mine, no_ack=True),
        get_of_another=lambda c: c.get(other),
        consume_from_another=lambda c: c.consume(other),
        purge=lambda c: c.purge(mine),
        purge_another=lambda c: c.purge(other),
        bind=lambda c: c.bind(mine, mine),
        unbind=lambda c: c.unbind(mine, mine),
        bind_to_another=lambda c: c.bind(mine, other),
        bind_exchanges=lambda c: c.bind_exchange(mine, other),
    )
    for name in (mine, other):
        user.everything.delete(name)
        user.everything.delete_exchange(name)
    return found


@scenario
def who_names_an_exchange_for_later_must_be_able_to_write_to_it(session: Session) -> Any:
    mine, other = session.name("mine"), session.name("other")
    dead = {"x-dead-letter-exchange": other}
    writer = Limited(session, configure="^mine", read="^mine", write="^mine")
    return writer.may(
        dead_letters_elsewhere=lambda c: c.declare(mine, arguments=dead),
        dead_letters_of_ones_own=lambda c: c.declare(mine, arguments={"x-dead-letter-exchange": mine}),
        delete=lambda c: c.delete(mine),
        alternate_elsewhere=lambda c: c.exchange(mine, arguments={"alternate-exchange": other}),
        alternate_of_ones_own=lambda c: c.exchange(mine, arguments={"alternate-exchange": f"{mine}-too"}),
        delete_the_exchange=lambda c: c.delete_exchange(mine),
    )


@scenario
def a_user_without_permissions_is_not_let_into_the_vhost(session: Session) -> Any:
    name = session.name("user")
    session.user(name)
    session.manage("DELETE", f"permissions/%2F/{name}")
    return session.bare().open(user=name, password="secret")


@scenario
def who_has_the_wrong_password_is_not_let_in(session: Session) -> Any:
    name = session.name("user")
    session.user(name)
    return [
        session.bare().open(user=name, password="wrong"),
        session.bare().open(user=session.name("nobody"), password="secret"),
    ]


@scenario
def topic_permissions_are_for_routing_keys_of_topic_exchanges(session: Session) -> Any:
    user = Limited(session, configure=".*", write=".*", read=".*")
    exchange, other = session.name("x"), session.name("y")
    queue = user.everything.queue(session.name("q"))
    user.everything.exchange(exchange, "topic")
    user.everything.exchange(other, "direct")
    path = f"topic-permissions/%2F/{user.name}"
    given = [
        session.manage("PUT", path, {"exchange": exchange, "write": "^a", "read": "^b"}),
        session.manage("PUT", path, {"exchange": other, "write": "^a", "read": "^b"}),
        session.manage("GET", path),
    ]
    found = user.may(
        publish=lambda c: published(c, exchange, "a.1"),
        publish_another_key=lambda c: published(c, exchange, "b.1"),
        bind=lambda c: c.bind(queue, exchange, "b.#"),
        bind_by_another_key=lambda c: c.bind(queue, exchange, "a.#"),
        unbind=lambda c: c.unbind(queue, exchange, "b.#"),
        unbind_another_key=lambda c: c.unbind(queue, exchange, "a.#"),
        bind_exchanges=lambda c: c.bind_exchange(other, exchange, "b.1"),
        bind_exchanges_by_another_key=lambda c: c.bind_exchange(other, exchange, "a.1"),
        publish_to_one_that_is_no_topic=lambda c: published(c, other, "b.1"),
        publish_to_another_topic=lambda c: published(c, "amq.topic", "b.1"),
    )
    cleared = session.manage("DELETE", path), session.manage("GET", path)
    after = user.may(publish_another_key=lambda c: published(c, exchange, "b.1"))
    user.everything.delete(queue)
    for name in (exchange, other):
        user.everything.delete_exchange(name)
    return [given, found, cleared, after]


@scenario
def topic_permissions_know_who_asks(session: Session) -> Any:
    user = Limited(session, configure=".*", write=".*", read=".*")
    path = f"topic-permissions/%2F/{user.name}"
    session.manage("PUT", path, {"exchange": "amq.topic", "write": "^{vhost}.{username}$", "read": ""})
    queue = user.everything.queue(session.name("q"))
    found = user.may(
        publish=lambda c: published(c, "amq.topic", f"/.{user.name}"),
        publish_another=lambda c: published(c, "amq.topic", "/.somebody"),
        bind_by_the_empty_key=lambda c: c.bind(queue, "amq.topic", ""),
        bind=lambda c: c.bind(queue, "amq.topic", "a"),
    )
    user.everything.delete(queue)
    return found


@scenario
def what_is_no_topic_permission(session: Session) -> Any:
    user = Limited(session, configure=".*", write=".*", read=".*")
    path = f"topic-permissions/%2F/{user.name}"
    return [
        session.manage("PUT", path, {"exchange": "amq.topic", "write": "^a"})[0],
        session.manage("PUT", path, {"write": "", "read": ""})[0],
        session.manage(
            "PUT",
            f"topic-permissions/{session.name('nowhere')}/{user.name}",
            {"exchange": "x", "write": "", "read": ""},
        )[0],
        session.manage("GET", path),
        session.manage("DELETE", path)[0],
    ]
