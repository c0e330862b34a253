"""IncrementalAlterConfigs: single configs are set, put back, appended to or subtracted from."""

from collections.abc import Mapping
from enum import IntEnum

from weir.gateway.kafka.admin.common import each, said_twice
from weir.gateway.kafka.admin.configs import said_list
from weir.gateway.kafka.admin.resources import alter
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.model.policies import Policies
from weir.model.registry import TopicRecord
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource
_Config = m.IncrementalAlterConfigsRequest.AlterableConfig
_Result = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse

_TIMEOUT_MS = 30_000


class Operation(IntEnum):
    """Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS = frozenset(Operation)


@handler(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1))
async def incremental_alter_configs(
    session: Session, request: m.IncrementalAlterConfigsRequest, version: int
) -> m.IncrementalAlterConfigsResponse:
    twice = said_twice((one.resource_type, one.resource_name) for one in request.resources)

    async def change(resource: _Resource) -> _Result:
        kind, name = resource.resource_type, resource.resource_name
        if (kind, name) in twice or said_twice(config.name for config in resource.configs):
            raise RefusedError(Code.INVALID_REQUEST, "the request names the same thing more than once")

        def changes(now: TopicRecord, holds: Policies) -> Mapping[str, str | None]:
            return {config.name: _value(config, now, holds) for config in resource.configs}

        named = [config.name for config in resource.configs]
        await alter(session, kind, name, named, changes, validate_only=request.validate_only)
        return _Result(error_message=None, resource_type=kind, resource_name=name)

    responses = await each(request.resources, change, _failed, _TIMEOUT_MS)
    return m.IncrementalAlterConfigsResponse(responses=responses)


def _value(config: _Config, now: TopicRecord, holds: Policies) -> str | None:
    """What the config shall be; None: its default."""
    operation = config.config_operation
    if operation not in _OPERATIONS:
        raise RefusedError(Code.INVALID_REQUEST, f"operation {operation} on {config.name} is not known")
    if operation == Operation.DELETE:
        return None
    if config.value is None:
        raise RefusedError(Code.INVALID_REQUEST, f"Null value not supported for : {config.name}")
    if operation == Operation.SET:
        return config.value
    given = [word for part in config.value.split(",") if (word := part.strip())]
    words = said_list(now, holds, config.name)
    if operation == Operation.APPEND:
        return ",".join([*words, *(word for word in given if word not in words)])
    return ",".join(word for word in words if word not in given)


def _failed(resource: _Resource, code: int, text: str) -> _Result:
    return _Result(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=code,
        error_message=text,
    )
