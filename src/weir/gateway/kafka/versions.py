"""What clients are told of the APIs that are served, and in which versions."""

from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import HANDLERS
from weir.wire.kafka import messages as m


def api_versions(error: Code = Code.NONE) -> m.ApiVersionsResponse:
    """Every API that has a handler."""
    return m.ApiVersionsResponse(
        error_code=error,
        api_keys=[
            m.ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=handler.advertised_first, max_version=handler.last
            )
            for key, handler in sorted(HANDLERS.items())
        ],
    )
