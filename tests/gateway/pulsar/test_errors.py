"""The table of errors: every error of a broker has a code of its own, and bugs tell nothing."""

import inspect

import pytest

from weir.gateway.pulsar.errors import CODES, code_of, text_of
from weir.model import errors
from weir.wire.pulsar import pulsar_api_pb2 as api

BROKER_ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.BrokerError) and kind is not errors.BrokerError
]


@pytest.mark.parametrize("kind", BROKER_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_a_broker_is_in_the_table(kind: type[errors.WeirError]) -> None:
    assert kind in CODES
    assert code_of(kind("x")) is not api.ServerError.UnknownError


def test_others_get_the_code_of_their_family() -> None:
    assert code_of(errors.NotEnoughBookiesError("x")) == api.ServerError.PersistenceError
    assert code_of(errors.MetaConflictError("x")) == api.ServerError.MetadataError


def test_a_bug_is_an_unknown_error_without_its_inside() -> None:
    assert code_of(KeyError("secret")) == api.ServerError.UnknownError
    assert "secret" not in text_of(KeyError("secret"))
    assert "what (hint)" in text_of(errors.WeirError("what", hint="hint"))
