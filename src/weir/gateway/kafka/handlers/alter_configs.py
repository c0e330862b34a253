"""AlterConfigs: all that a topic's configs shall be; what is not named goes back to its default."""

from collections.abc import Mapping

from weir.gateway.kafka.admin.common import each, said_twice
from weir.gateway.kafka.admin.configs import everything_else
from weir.gateway.kafka.admin.resources import alter
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError
from weir.gateway.kafka.registry import handler
from weir.model.policies import Policies
from weir.model.registry import TopicRecord
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Resource = m.AlterConfigsRequest.AlterConfigsResource
_Result = m.AlterConfigsResponse.AlterConfigsResourceResponse

_TIMEOUT_MS = 30_000


@handler(ApiKey.ALTER_CONFIGS, versions=(0, 2))
async def alter_configs(session: Session, request: m.AlterConfigsRequest, version: int) -> m.AlterConfigsResponse:
    twice = said_twice((one.resource_type, one.resource_name) for one in request.resources)

    async def replace_all(resource: _Resource) -> _Result:
        if (resource.resource_type, resource.resource_name) in twice:
            raise RefusedError(Code.INVALID_REQUEST, "the request names this resource more than once")
        wanted = _wanted(resource)

        def changes(now: TopicRecord, holds: Policies) -> Mapping[str, str | None]:
            return {**everything_else(now, holds, wanted), **wanted}

        kind, name = resource.resource_type, resource.resource_name
        await alter(session, kind, name, wanted, changes, validate_only=request.validate_only)
        return _Result(error_message=None, resource_type=kind, resource_name=name)

    return m.AlterConfigsResponse(responses=await each(request.resources, replace_all, _failed, _TIMEOUT_MS))


def _wanted(resource: _Resource) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise RefusedError(Code.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        if config.name in wanted:
            raise RefusedError(Code.INVALID_REQUEST, f"the request names {config.name} more than once")
        wanted[config.name] = config.value
    return wanted


def _failed(resource: _Resource, code: int, text: str) -> _Result:
    return _Result(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=code,
        error_message=text,
    )
