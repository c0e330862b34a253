"""The server keeps to its OpenAPI document, whatever is asked: schemathesis asks."""

from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: What the calls are about half of the time, so that they get further than to a 404.
KNOWN = {
    "tenant": "public",
    "namespace": "fuzzed",
    "topic": "t",
    "subscription": "s",
    "cluster": "standalone",
    "position": "1",
    "version": "0",
    "role": "someone",
    "key": "k",
    "vhost": "fuzzed",
    "name": "t",
    "source": "amq.topic",
    "destination": "t",
}


#: RabbitMQ's API. Whether something listens is answered with an error of the server if nothing does.
MANAGEMENT = "/api/"
HEALTH = "/api/health/checks/"


def prepare(weir: Any) -> None:
    """What the calls are about is there, however the last one left it."""
    weir.ask("PUT", "tenants/public", {"allowedClusters": ["standalone"]})
    weir.ask("PUT", "namespaces/public/fuzzed")
    weir.ask("PUT", "persistent/public/fuzzed/t")
    weir.ask("PUT", "non-persistent/public/fuzzed/t")
    weir.ask("PUT", "persistent/public/fuzzed/t/subscription/s")


def operations(weir: Any) -> list[Any]:
    schema = schemathesis.openapi.from_dict(weir.ask("GET", "/openapi.json").json)
    schema.config.update(base_url=weir.http)
    found = [found.ok() for found in schema.get_all_operations()]
    return [operation for operation in found if not operation.path.startswith(HEALTH)]


@pytest.mark.longest
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_what_is_answered_is_what_was_documented(start_weir, mode: GenerationMode) -> None:
    weir = start_weir()
    session = requests.Session()
    broken, changed, calls = [], True, 0
    for operation in operations(weir):
        if is_left_out(operation, mode):
            continue
        if changed:
            prepare(weir)
        changed = operation.method.upper() == "DELETE"
        try:
            calls += check(operation, mode, session)
        except FailureGroup as failures:
            broken += [f"{operation.label}: {failure}" for failure in failures.exceptions]
    assert not broken, "\n\n".join(broken)
    assert calls > 300


def is_left_out(operation: Any, mode: GenerationMode) -> bool:
    """The management API has very many, and tests of its own for each: here are those with a body, as they should
    be."""
    if not operation.path.startswith(MANAGEMENT):
        return False
    return mode is GenerationMode.NEGATIVE or operation.method.upper() in ("GET", "DELETE")


def check(operation: Any, mode: GenerationMode, session: requests.Session) -> int:
    """A few calls; how many."""
    turn = 0
    examples = 3 if mode is GenerationMode.POSITIVE else 2
    if operation.path.startswith(MANAGEMENT):  # very many, and alike
        examples = 1

    @seed(1)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        nonlocal turn
        turn += 1
        if turn % 2:
            given = case.path_parameters
            case.path_parameters = {**given, **{name: KNOWN[name] for name in given if name in KNOWN}}
        case.call_and_validate(session=session, checks=CHECKS)

    with suppress(Unsatisfiable):  # an operation that takes nothing cannot be called wrongly
        run()
    return turn
