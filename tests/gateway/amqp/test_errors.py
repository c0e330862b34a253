"""Every error of Weir has a reply code, and the texts are RabbitMQ's."""

import inspect

import pytest

from weir.gateway.amqp.errors import CODES, code_of, precondition_failed, refusal_of
from weir.model import errors
from weir.wire.amqp.frames import ReplyCode
from weir.wire.amqp.methods import Method, basic, queue

EVERY = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.WeirError)]


@pytest.mark.parametrize("kind", EVERY)
def test_every_error_has_a_code_that_a_close_may_say(kind: type[errors.WeirError]) -> None:
    code = next(CODES[one] for one in kind.__mro__ if one in CODES)
    assert code.ends_channel_only or code >= ReplyCode.FRAME_ERROR


@pytest.mark.parametrize(
    ("failure", "method", "text"),
    [
        (errors.QueueNotFoundError("no queue 'q'"), None, "NOT_FOUND - no queue 'q' in vhost 'v'"),
        (
            errors.QueueNotFoundError("no queue 'q' in vhost 'v'"),
            None,
            "NOT_FOUND - no queue 'q' in vhost 'v'",
        ),
        (
            errors.NotAuthorisedError("no"),
            queue.Declare("q"),
            "ACCESS_REFUSED - access to queue 'q' in vhost 'v' refused for user 'u'",
        ),
        (
            errors.NotAuthorisedError("no"),
            basic.Publish("", "q"),
            "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'v' refused for user 'u'",
        ),
        (precondition_failed("as it is"), None, "PRECONDITION_FAILED - as it is"),
        (KeyError("secret"), None, "INTERNAL_ERROR - an internal error; see the broker's log"),
        (errors.DiskError("/path"), None, "INTERNAL_ERROR - an internal error; see the broker's log"),
    ],
)
def test_texts_are_rabbitmqs_and_tell_nothing_of_the_inside(
    failure: Exception, method: Method | None, text: str
) -> None:
    found = refusal_of(failure, method, "v", "u")
    assert found.text == text
    assert found.code is code_of(failure)
    if method is not None:
        assert (found.class_id, found.method_id) == (method.class_id, method.method_id)
