"""DescribeCluster: which brokers there are."""

from weir.gateway.kafka.admin.operations import NOT_ASKED, cluster_operations
from weir.gateway.kafka.connection.session import Session
from weir.gateway.kafka.errors import Code
from weir.gateway.kafka.registry import handler
from weir.wire.kafka import messages as m
from weir.wire.kafka.apis import ApiKey

_BROKERS = 1
_CONTROLLERS = 2


@handler(ApiKey.DESCRIBE_CLUSTER, versions=(0, 2))
async def describe_cluster(
    session: Session, request: m.DescribeClusterRequest, version: int
) -> m.DescribeClusterResponse:
    services = session.services
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return m.DescribeClusterResponse(
            error_code=Code.MISMATCHED_ENDPOINT_TYPE if known else Code.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker; ask it for brokers",
            endpoint_type=_BROKERS,
            cluster_authorized_operations=NOT_ASKED,
        )
    operations = NOT_ASKED
    if request.include_cluster_authorized_operations:
        operations = cluster_operations(services.authoriser, session.role)
    nodes = session.nodes.all()
    return m.DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=services.settings.cluster_id,
        controller_id=session.nodes.controller(nodes),
        brokers=[
            m.DescribeClusterResponse.DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack
            )
            for node in nodes.values()
        ],
        cluster_authorized_operations=operations,
    )
