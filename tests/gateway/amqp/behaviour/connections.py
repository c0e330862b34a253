"""Connections and channels: how they are opened, tuned and closed, and every error that ends one."""

from struct import pack
from typing import Any

from tests.gateway.amqp.behaviour.raw import Raw
from tests.gateway.amqp.behaviour.scenario import Session, scenario
from tests.gateway.amqp.behaviour.talk import until

from weir.wire.amqp.frames import PROTOCOL_HEADER
from weir.wire.amqp.methods import access, basic, channel, connection, queue
from weir.wire.amqp.properties import Properties
from weir.wire.amqp.tables import Table

_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END = b"\xce"


def frame(kind: int, number: int, payload: bytes, end: bytes = _END) -> bytes:
    return pack(">BHI", kind, number, len(payload)) + payload + end


def header(size: int, *, class_id: int = 60, weight: int = 0, flags: bytes = b"\0\0") -> bytes:
    return pack(">HHQ", class_id, weight, size) + flags


def publishing(number: int = 1) -> bytes:
    """The frame of a publish, whose content is still to come."""
    return frame(_METHOD, number, pack(">HHH", 60, 40, 0) + b"\0\4none\0")


def after(session: Session, data: bytes) -> Any:
    """What a broker says to these bytes on a connection whose channel 1 is open."""
    raw = session.raw()
    raw.channel()
    raw.send_bytes(data)
    return raw.hear()


def code(said: Any) -> Any:
    """Without the words: those of RabbitMQ are terms of Erlang."""
    return said.partition(" - ")[0] if isinstance(said, str) else said


# --- opening --------------------------------------------------------------------------------------------------


@scenario
def a_wrong_header_is_answered_with_the_right_one(session: Session) -> Any:
    found = []
    for opening in (b"AMQP\0\0\x09\2", b"AMQP\1\1\0\x0a", b"GET / HTTP/1.1\r\n\r\n"):
        raw = session.bare()
        raw.send_bytes(opening)
        found.append(raw.read_bytes(64))
    return found


@scenario
def the_server_starts_with_what_it_can(session: Session) -> Any:
    raw = session.bare()
    raw.send_bytes(PROTOCOL_HEADER)
    start = raw.hear()
    properties = start["server_properties"]
    return {
        "version": [start["version_major"], start["version_minor"]],
        "mechanisms": sorted(start["mechanisms"].split()),
        "locales": start["locales"],
        "capabilities": properties["capabilities"],
        "properties": sorted(properties),
    }


def starting(session: Session, mechanism: str, response: bytes, *, close: bool = True) -> Any:
    raw = session.bare()
    raw.send_bytes(PROTOCOL_HEADER)
    raw.read()
    able = Table.of({"capabilities": Table.of({"authentication_failure_close": close})})
    return raw.ask(0, connection.StartOk(able, mechanism, response))


@scenario
def plain_and_amqplain_log_in(session: Session) -> Any:
    table = Table.of({"LOGIN": "guest", "PASSWORD": "guest"})
    return [starting(session, "PLAIN", b"\0guest\0guest"), starting(session, "AMQPLAIN", table.raw)]


@scenario
def an_unknown_mechanism_is_an_error(session: Session) -> Any:
    return starting(session, "NOTHING", b"")


@scenario
def malformed_logins_are_errors(session: Session) -> Any:
    return [
        starting(session, "PLAIN", b"guest"),
        starting(session, "AMQPLAIN", Table.of({"LOGIN": "guest"}).raw),
    ]


@scenario
def a_wrong_password_is_told_to_those_who_understand(session: Session) -> Any:
    return [
        starting(session, "PLAIN", b"\0guest\0wrong"),
        starting(session, "PLAIN", b"\0guest\0wrong", close=False),
    ]


@scenario
def the_server_proposes_limits(session: Session) -> Any:
    return starting(session, "PLAIN", b"\0guest\0guest")


def tuned(session: Session, **limits: int) -> Any:
    raw = session.bare()
    return raw.open(**limits)  # type: ignore[arg-type]


@scenario
def limits_are_negotiated_down_only(session: Session) -> Any:
    return {
        "small frames": tuned(session, frame_max=4096),
        "too small frames": tuned(session, frame_max=4095),
        "too large frames": tuned(session, frame_max=131_073),
        "unlimited frames": tuned(session, frame_max=0),
        "one channel": tuned(session, channel_max=1),
        "too many channels": tuned(session, channel_max=2048),
        "unlimited channels": tuned(session, channel_max=0),
    }


@scenario
def an_unknown_vhost_is_not_allowed(session: Session) -> Any:
    return tuned(session, vhost="no-such-place")  # type: ignore[arg-type]


@scenario
def open_before_tune_is_an_error(session: Session) -> Any:
    raw = session.bare()
    raw.send_bytes(PROTOCOL_HEADER)
    raw.read()
    return raw.ask(0, connection.Open("/"))


@scenario
def a_connection_is_closed_in_order(session: Session) -> Any:
    raw = session.raw()
    return raw.ask(0, connection.Close(200, "bye"))


@scenario
def a_secret_can_be_updated(session: Session) -> Any:
    raw = session.raw()
    return raw.ask(0, connection.UpdateSecret(b"guest", "in time"))


@scenario
def heartbeats_are_sent(session: Session) -> Any:
    raw = session.bare()
    raw.open(heartbeat=1)
    return raw.read_bytes(8)


@scenario
def who_sends_no_heartbeats_is_dropped(session: Session) -> Any:
    raw = session.bare()
    raw.open(heartbeat=1)
    return raw.hear()


@scenario
def an_operator_closes_a_connection(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    made = raw.ask(1, queue.Declare("", exclusive=True))["queue"]

    def owner() -> Any:
        _status, found = session.manage("GET", f"queues/%2F/{made}")
        details = found.get("owner_pid_details") if isinstance(found, dict) else None
        return details and details.get("name")

    name = until(owner)
    from urllib.parse import quote

    status = session.manage("DELETE", f"connections/{quote(str(name), safe='')}")[0]
    return [status, raw.hear()]


# --- channels -------------------------------------------------------------------------------------------------


@scenario
def a_channel_is_opened_closed_and_opened_again(session: Session) -> Any:
    raw = session.raw()
    return [
        raw.ask(7, channel.Open()),
        raw.ask(7, channel.Close(200, "bye")),
        raw.ask(7, channel.Open()),
        raw.ask(7, queue.Declare("", exclusive=True))["is"],
    ]


@scenario
def a_channel_lives_again_after_an_error(session: Session) -> Any:
    raw = session.raw()
    raw.channel(1)
    raw.channel(2)
    missing = queue.Declare(session.name("q"), passive=True)
    found = [raw.ask(1, missing)]
    raw.send(1, missing)  # not heard: the channel is closing
    raw.send(1, channel.CloseOk())
    found.append(raw.ask(1, channel.Open()))
    found.append(raw.ask(2, queue.Declare("", exclusive=True))["is"])
    return found


@scenario
def a_channel_is_not_opened_twice(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    return raw.ask(1, channel.Open())


@scenario
def a_channel_must_be_open(session: Session) -> Any:
    return session.raw().ask(1, queue.Declare("", exclusive=True))


@scenario
def there_are_no_more_channels_than_negotiated(session: Session) -> Any:
    raw = session.bare()
    raw.open(channel_max=2)
    return [raw.channel(1), raw.channel(2), raw.channel(3)]


@scenario
def flow_is_answered_and_cannot_be_stopped(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    return [raw.ask(1, channel.Flow(True)), raw.ask(1, channel.Flow(False))]


@scenario
def access_is_granted_to_all(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    return raw.ask(1, access.Request("/data"))["is"]


# --- errors of the connection ---------------------------------------------------------------------------------


@scenario
def code_501_for_a_frame_without_its_end(session: Session) -> Any:
    return code(after(session, frame(_METHOD, 1, pack(">HH", 20, 20) + b"\1", end=b"\0")))


@scenario
def code_501_for_a_frame_too_large(session: Session) -> Any:
    return code(after(session, frame(_METHOD, 1, b"\0" * 140_000)))


@scenario
def code_501_for_an_unknown_kind_of_frame(session: Session) -> Any:
    return code(after(session, frame(77, 1, b"")))


@scenario
def code_501_for_arguments_cut_short(session: Session) -> Any:
    return code(after(session, frame(_METHOD, 1, pack(">HH", 50, 10) + b"\0")))


@scenario
def a_malformed_table_is_an_error(session: Session) -> Any:
    bad = pack(">HHH", 50, 10, 0) + b"\0\0" + pack(">I", 3) + b"\1a?"
    return code(after(session, frame(_METHOD, 1, bad)))


@scenario
def code_503_for_what_only_servers_say(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    return code(raw.ask(1, queue.DeclareOk("q", 0, 0)))


@scenario
def code_503_for_a_connections_method_on_a_channel(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    return code(raw.ask(1, connection.Close(200, "bye")))


@scenario
def code_504_for_a_channels_method_on_channel_0(session: Session) -> Any:
    return code(session.raw().ask(0, channel.Open()))


@scenario
def code_503_for_an_unknown_type_of_exchange(session: Session) -> Any:
    return session.channel().exchange(session.name("x"), "nothing")


@scenario
def code_504_for_frames_of_a_closed_channel(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    raw.ask(1, channel.Close(200, "bye"))
    return raw.ask(1, basic.Get("q"))


@scenario
def code_505_for_a_body_without_a_header(session: Session) -> Any:
    return code(after(session, publishing() + frame(_BODY, 1, b"body")))


@scenario
def code_505_for_a_header_without_a_method(session: Session) -> Any:
    return code(after(session, frame(_HEADER, 1, header(0))))


@scenario
def code_505_for_a_body_without_a_method(session: Session) -> Any:
    return code(after(session, frame(_BODY, 1, b"body")))


@scenario
def code_505_for_a_method_within_a_content(session: Session) -> Any:
    return code(after(session, publishing() + publishing()))


@scenario
def code_505_for_a_method_within_a_body(session: Session) -> Any:
    return code(after(session, publishing() + frame(_HEADER, 1, header(9)) + publishing()))


@scenario
def code_505_for_a_content_of_another_class(session: Session) -> Any:
    return code(after(session, publishing() + frame(_HEADER, 1, header(0, class_id=50))))


@scenario
def unknown_methods_are_errors(session: Session) -> Any:
    return [
        code(after(session, frame(_METHOD, 1, pack(">HH", 60, 999)))),
        code(after(session, frame(_METHOD, 1, pack(">HH", 999, 10)))),
    ]


@scenario
def code_540_for_what_rabbitmq_has_not(session: Session) -> Any:
    found = []
    for method in (basic.Qos(prefetch_size=10), basic.Recover(False), basic.Publish("", "q", immediate=True)):
        raw = session.raw()
        raw.channel()
        if isinstance(method, basic.Publish):
            raw.publish(1, method, b"body", Properties())
            found.append(raw.hear())
        else:
            found.append(raw.ask(1, method))
    return found


@scenario
def code_530_for_a_consumer_tag_used_twice(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    name = raw.ask(1, queue.Declare(session.name("q"), exclusive=True))["queue"]
    return [raw.ask(1, basic.Consume(name, "one")), raw.ask(1, basic.Consume(name, "one"))]


@scenario
def a_heartbeat_on_a_channel_is_an_error(session: Session) -> Any:
    return code(after(session, frame(_HEARTBEAT, 1, b"")))


@scenario
def nothing_is_heard_after_a_close(session: Session) -> Any:
    raw = session.raw()
    raw.channel()
    name = session.name("q")
    raw.send(0, connection.Close(200, "bye"))
    raw.send(1, queue.Declare(name))
    return [raw.hear(), _declared(session.raw(), name)]


def _declared(raw: Raw, name: str) -> Any:
    raw.channel()
    return raw.ask(1, queue.Declare(name, passive=True))
