"""What a Kafka client is told when another broker could not do what this one asked of it."""

import pytest

from weir.gateway.kafka.errors import Code, code_of
from weir.model.errors import PeerBusyError, PeerError, PeerFailedError, PeerUnavailableError, PeerUnsupportedError


@pytest.mark.parametrize(
    "kind", [PeerError, PeerBusyError, PeerFailedError, PeerUnavailableError, PeerUnsupportedError]
)
def test_a_client_tries_again_what_another_broker_did_not_do(kind: type[PeerError]) -> None:
    assert code_of(kind("x")) == Code.REQUEST_TIMED_OUT
