"""DescribeConfigs: what holds for topics, and for this broker."""

from weir.gateway.kafka.admin.broker_configs import HTTP_URL, BrokerConfig, broker_configs, defaults_of
from weir.gateway.kafka.admin.common import check_cluster, check_named
from weir.gateway.kafka.admin.config_table import SYNONYMS
from weir.gateway.kafka.admin.configs import Shown, Source, shown
from weir.gateway.kafka.admin.resources import ResourceType, check_here
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code, RefusedError, code_of, text_of
from weir.gateway.kafka.registry import handler
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_Resource = m.DescribeConfigsRequest.DescribeConfigsResource
_Result = m.DescribeConfigsResponse.DescribeConfigsResult
_Config = m.DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = m.DescribeConfigsResponse.DescribeConfigsSynonym

#: Described before others get a turn.
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
                raise RefusedError(Code.INVALID_REQUEST, f"there are no configs of resources of type {other}")
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
    """Where the value comes from, and what would hold without it."""
    found = []
    if one.source is not Source.DEFAULT:
        found.append(_Synonym(name=one.config.name, value=one.value, source=one.source))
    above = one.config.broker_name or SYNONYMS.get(one.config.name, one.config.name)
    if above:
        found.append(_Synonym(name=above, value=one.default, source=Source.DEFAULT))
    return found


def _of_broker(session: Session, resource: _Resource, *, synonyms: bool) -> list[_Config]:
    name, services = resource.resource_name, session.services
    if resource.configuration_keys != [HTTP_URL]:  # where to find the admin API is no secret
        check_cluster(session)
    check_here(services.settings, name)
    if not name:
        return []  # no broker has what all of them could be told together
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
