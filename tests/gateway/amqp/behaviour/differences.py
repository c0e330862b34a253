"""What Weir answers otherwise than RabbitMQ, on purpose: by scenario and place in its answer. `docs/amqp.md` has
the reasons, under "Differences"."""

from typing import Any

_TUNED = {"on": 0, "is": "connection.tune", "channel_max": 2047, "frame_max": 131072, "heartbeat": 60}
_REFUSED = "connection 403 ACCESS_REFUSED - Login was refused using authentication mechanism {} For details see the"
_OUT_OF_RANGE = "connection 530 NOT_ALLOWED - negotiated {} is higher than the maximum allowed value ({}) at 10.31"

DIFFERENCES: dict[str, dict[str, Any]] = {
    # Why it is refused is said, where RabbitMQ hangs up.
    "connections.an_unknown_mechanism_is_an_error": {
        "": "connection 503 COMMAND_INVALID - unknown authentication mechanism 'NOTHING' at 10.11"
    },
    "connections.malformed_logins_are_errors": {
        "0": f"{_REFUSED.format('PLAIN.')} broker logfile. at 10.11",
        "1": f"{_REFUSED.format('AMQPLAIN.')} broker logfile. at 10.11",
    },
    "connections.limits_are_negotiated_down_only": {
        "too small frames": "connection 530 NOT_ALLOWED - frame_max=4095 < 4096 min size at 10.31",
        "too large frames": _OUT_OF_RANGE.format("frame_max = 131073", 131072),
        "unlimited frames": {"on": 0, "is": "connection.open-ok"},
        "too many channels": _OUT_OF_RANGE.format("channel_max = 2048", 2047),
        "unlimited channels": {"on": 0, "is": "connection.open-ok"},
    },
    "connections.open_before_tune_is_an_error": {
        "": "connection 503 COMMAND_INVALID - connection.open is out of place at 10.40"
    },
    "connections.a_malformed_table_is_an_error": {"": "connection 502 SYNTAX_ERROR"},
    "connections.unknown_methods_are_errors": {
        "0": "connection 540 NOT_IMPLEMENTED",
        "1": "connection 540 NOT_IMPLEMENTED",
    },
    # Authentication is off unless it is configured.
    "connections.a_wrong_password_is_told_to_those_who_understand": {"0": _TUNED, "1": _TUNED},
}
