"""What clients are told of the APIs that are served, in which versions, and which features are in force."""

from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import HANDLERS
from weir.wire.kafka import messages as m

_Supported = m.ApiVersionsResponse.SupportedFeatureKey
_Finalized = m.ApiVersionsResponse.FinalizedFeatureKey

#: Features that clients go by, by Kafka's names: the lowest level that is understood, and the one in force.
FEATURES = {"transaction.version": (0, 2)}
#: They are part of the release: there is one set of them, and it never changes.
_FEATURES_EPOCH = 0
#: Clients that ask in older versions fail to read a feature whose lowest level is 0.
_LEVEL_0_SINCE = 4


def api_versions(error: Code = Code.NONE, version: int = 0) -> m.ApiVersionsResponse:
    """Every API that has a handler."""
    return m.ApiVersionsResponse(
        error_code=error,
        api_keys=[
            m.ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=handler.advertised_first, max_version=handler.last
            )
            for key, handler in sorted(HANDLERS.items())
        ],
        supported_features=[
            _Supported(name=name, min_version=lowest, max_version=level)
            for name, (lowest, level) in FEATURES.items()
            if lowest > 0 or version >= _LEVEL_0_SINCE
        ],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            _Finalized(name=name, min_version_level=level, max_version_level=level)
            for name, (_, level) in FEATURES.items()
        ],
    )
