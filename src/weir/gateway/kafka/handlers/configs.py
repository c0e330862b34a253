"""Handlers of DescribeConfigs, AlterConfigs (replaces all configs of a topic) and IncrementalAlterConfigs."""

from collections.abc import Mapping
from enum import IntEnum

from weir.gateway.kafka.admin_requests import check_cluster, check_named, each, said_twice
from weir.gateway.kafka.api_table import handler
from weir.gateway.kafka.config_table import SYNONYMS
from weir.gateway.kafka.configs import (
    HTTP_URL,
    BrokerConfig,
    ResourceType,
    Shown,
    Source,
    alter,
    broker_configs,
    check_here,
    defaults_of,
    everything_else,
    said_list,
    shown,
)
from weir.gateway.kafka.errors import Code, RefusedError, code_of, text_of
from weir.gateway.kafka.session import Session
from weir.model.errors import WeirError
from weir.model.policies import Policies
from weir.model.registry import TopicRecord
from weir.wire.kafka import messages as m
from weir.wire.kafka.api_table import ApiKey

_Resource = m.DescribeConfigsRequest.DescribeConfigsResource
_Result = m.DescribeConfigsResponse.DescribeConfigsResult
_Config = m.DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = m.DescribeConfigsResponse.DescribeConfigsSynonym

#: Resources described before the handler yields.
_AT_ONCE = 20


@handler(ApiKey.DESCRIBE_CONFIGS, versions=(1, 4))
async def describe_configs(
    session: Session, request: m.DescribeConfigsRequest, version: int
) -> m.DescribeConfigsResponse:
    check_named(len(request.resources))
    results = []
    for number, resource in enumerate(request.resources, 1):
        results.append(await _described(session, request, resource))
        if not number % _AT_ONCE:
            await session.turns.next()
    return m.DescribeConfigsResponse(results=results)


async def _described(session: Session, request: m.DescribeConfigsRequest, resource: _Resource) -> _Result:
    result = _Result(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        match resource.resource_type:
            case ResourceType.TOPIC:
                found = await _of_topic(session, resource.resource_name, synonyms=request.include_synonyms)
            case ResourceType.BROKER:
                found = _of_broker(session, resource, synonyms=request.include_synonyms)
            case other:
                raise RefusedError(Code.INVALID_REQUEST, f"resources of type {other} have no configs")
    except WeirError as failure:
        result.error_code, result.error_message = code_of(failure), text_of(failure)
        return result
    wanted = resource.configuration_keys
    result.configs = [config for config in found if not wanted or config.name in wanted]
    if not request.include_documentation:
        for config in result.configs:
            config.documentation = None
    return result


async def _of_topic(session: Session, name: str, *, synonyms: bool) -> list[_Config]:
    services = session.services
    services.guard.check(session.role, services.catalog.base(name), None)
    record = await services.catalog.look(name)
    holds = services.registry.policies(record.name)
    return [
        _Config(
            name=one.config.name,
            value=one.value,
            config_source=one.source,
            config_type=one.config.kind,
            synonyms=_synonyms(one) if synonyms else [],
            documentation=one.documentation,
        )
        for one in shown(record, holds, defaults_of(services.settings))
    ]


def _synonyms(one: Shown) -> list[_Synonym]:
    """The config that sets the value, and the default that would apply without it."""
    found = []
    if one.source is not Source.DEFAULT:
        found.append(_Synonym(name=one.config.name, value=one.value, source=one.source))
    above = one.config.broker_name or SYNONYMS.get(one.config.name, one.config.name)
    if above:
        found.append(_Synonym(name=above, value=one.default, source=Source.DEFAULT))
    return found


def _of_broker(session: Session, resource: _Resource, *, synonyms: bool) -> list[_Config]:
    name, services = resource.resource_name, session.services
    if resource.configuration_keys != [HTTP_URL]:  # every client may read the admin API's URL
        check_cluster(session)
    check_here(services.settings, name)
    if not name:
        return []  # no config applies to all brokers together
    configs = broker_configs(
        services.settings,
        services.registry,
        advertised_host=session.advertised_host,
        advertised_port=session.advertised_port,
    )
    return [_of_config(config, synonyms=synonyms) for config in configs]


def _of_config(config: BrokerConfig, *, synonyms: bool) -> _Config:
    source = Source.DEFAULT if config.default else Source.STATIC_BROKER
    return _Config(
        name=config.name,
        value=config.value,
        read_only=True,
        config_source=source,
        config_type=config.kind,
        synonyms=[_Synonym(name=config.name, value=config.value, source=source)] if synonyms else [],
        documentation="Set where Weir is started; see docs/reference/configuration.md.",
    )


_AlterConfigsResource = m.AlterConfigsRequest.AlterConfigsResource
_AlterConfigsResult = m.AlterConfigsResponse.AlterConfigsResourceResponse

_TIMEOUT_MS = 30_000


@handler(ApiKey.ALTER_CONFIGS, versions=(0, 2))
async def alter_configs(session: Session, request: m.AlterConfigsRequest, version: int) -> m.AlterConfigsResponse:
    twice = said_twice((one.resource_type, one.resource_name) for one in request.resources)

    async def replace_all(resource: _AlterConfigsResource) -> _AlterConfigsResult:
        if (resource.resource_type, resource.resource_name) in twice:
            raise RefusedError(Code.INVALID_REQUEST, "the request names this resource more than once")
        wanted = _wanted(resource)

        def changes(now: TopicRecord, holds: Policies) -> Mapping[str, str | None]:
            return {**everything_else(now, holds, wanted), **wanted}

        kind, name = resource.resource_type, resource.resource_name
        await alter(session, kind, name, wanted, changes, validate_only=request.validate_only)
        return _AlterConfigsResult(error_message=None, resource_type=kind, resource_name=name)

    return m.AlterConfigsResponse(responses=await each(request.resources, replace_all, _failed, _TIMEOUT_MS))


def _wanted(resource: _AlterConfigsResource) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise RefusedError(Code.INVALID_REQUEST, f"Null value not supported for : {config.name}")
        if config.name in wanted:
            raise RefusedError(Code.INVALID_REQUEST, f"the request names {config.name} more than once")
        wanted[config.name] = config.value
    return wanted


def _failed(resource: _AlterConfigsResource, code: int, text: str) -> _AlterConfigsResult:
    return _AlterConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=code,
        error_message=text,
    )


_IncrementalAlterConfigsResource = m.IncrementalAlterConfigsRequest.AlterConfigsResource
_IncrementalAlterConfigsConfig = m.IncrementalAlterConfigsRequest.AlterableConfig
_IncrementalAlterConfigsResult = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


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

    async def change(resource: _IncrementalAlterConfigsResource) -> _IncrementalAlterConfigsResult:
        kind, name = resource.resource_type, resource.resource_name
        if (kind, name) in twice or said_twice(config.name for config in resource.configs):
            raise RefusedError(Code.INVALID_REQUEST, "the request names the same thing more than once")

        def changes(now: TopicRecord, holds: Policies) -> Mapping[str, str | None]:
            return {config.name: _value(config, now, holds) for config in resource.configs}

        named = [config.name for config in resource.configs]
        await alter(session, kind, name, named, changes, validate_only=request.validate_only)
        return _IncrementalAlterConfigsResult(error_message=None, resource_type=kind, resource_name=name)

    responses = await each(request.resources, change, _incremental_failed, _TIMEOUT_MS)
    return m.IncrementalAlterConfigsResponse(responses=responses)


def _value(config: _IncrementalAlterConfigsConfig, now: TopicRecord, holds: Policies) -> str | None:
    """The new value of the config; None: its default."""
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


def _incremental_failed(
    resource: _IncrementalAlterConfigsResource, code: int, text: str
) -> _IncrementalAlterConfigsResult:
    return _IncrementalAlterConfigsResult(
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        error_code=code,
        error_message=text,
    )
