"""What Weir answers otherwise than RabbitMQ, on purpose: by scenario and place in its answer.
`docs/reference/amqp.md` has
the reasons, under "Differences"."""

from typing import Any

_TUNED = {"on": 0, "is": "connection.tune", "channel_max": 2047, "frame_max": 131072, "heartbeat": 60}
_WRONG = "channel 406 PRECONDITION_FAILED - invalid"

DIFFERENCES: dict[str, dict[str, Any]] = {
    # Authentication is off unless it is configured.
    "connections.a_wrong_password_is_told_to_those_who_understand": {"0": _TUNED, "1": _TUNED},
    # A client of another protocol gets an answer in its own protocol that names the right port.
    "connections.a_wrong_header_is_answered_with_the_right_one": {
        "2": "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnec"
    },
    # Where RabbitMQ fails by accident, the client is told what it did.
    "connections.a_malformed_table_is_an_error": {"": "connection 502 SYNTAX_ERROR"},
    "connections.unknown_methods_are_errors": {
        "0": "connection 540 NOT_IMPLEMENTED",
        "1": "connection 540 NOT_IMPLEMENTED",
    },
    "queues.what_a_stream_cannot_be": {
        "wrong age": f"{_WRONG} arg 'x-max-age' for queue 'wrong-age' in vhost '/': invalid_max_age"
    },
    "streams.offsets_in_all_their_forms": {
        "wrong text": f"{_WRONG} value 'soon' of x-stream-offset",
        "wrong type": f"{_WRONG} value True of x-stream-offset",
    },
    # Who may neither produce nor consume does not learn how much is in a queue.
    "permissions.nothing_is_granted": {
        "0/declare passively": "channel 403 ACCESS_REFUSED - "
        "access to queue 'q' in vhost '/' refused for user 'user'"
    },
    # Grants may be on single topics: who comes in is asked at each word what it may do.
    "permissions.a_user_without_permissions_is_not_let_into_the_vhost": {
        "": {"on": 0, "is": "connection.open-ok"}
    },
    # What would be refused is not offered.
    "certificates.without_a_certificate_it_is_not_offered": {"": [["AMQPLAIN", "PLAIN"], "closed"]},
    # A role need not be a user: whom the authority knows is let in, and may do what the role was granted.
    "certificates.who_is_not_known_is_refused": {"": "connection.tune"},
    # What is given back goes to its old place, in all kinds of queues.
    "rules.a_quorum_queue_gives_back_to_the_old_place": {"": ["1*", "2*", "4"]},
    "rules.a_quorum_queue_counts_deliveries": {
        "1": ["1*", {"x-delivery-count": 1}],
        "2": ["1*", {"x-delivery-count": 2}],
    },
    # A limit that is no number would silently be none.
    "queues.what_a_quorum_queue_cannot_be": {
        "limit as text": f"{_WRONG} arg 'x-delivery-limit' for queue 'limit-as-text' in vhost '/': "
        '"expected integer, got longstr"',
        "limit below 0": f"{_WRONG} arg 'x-delivery-limit' for queue 'limit-below-0' in vhost '/': "
        "{value_negative,-1}",
    },
}
