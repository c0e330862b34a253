"""DescribeAcls: there are none. Weir's rights are roles' permissions, which its own commands change."""

from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey


@handler(ApiKey.DESCRIBE_ACLS, versions=(1, 3))
async def describe_acls(session: Session, request: m.DescribeAclsRequest, version: int) -> m.DescribeAclsResponse:
    """As a Kafka without an authorizer says it: tools that copy ACLs (MirrorMaker 2) then leave them alone."""
    return m.DescribeAclsResponse(
        error_code=Code.SECURITY_DISABLED,
        error_message="there are no ACLs here; permissions of roles are shown by weir namespaces and weir topics",
    )
