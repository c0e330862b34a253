"""What a producer is told of a batch that was not stored; and, if another broker leads the partition, who does."""

from typing import TYPE_CHECKING

from weir.gateway.kafka.errors import Code, text_of
from weir.gateway.kafka.produce.batches import BadRecordsError
from weir.gateway.kafka.transacting import produce_code
from weir.model.errors import WeirError
from weir.wire.kafka import messages as m

if TYPE_CHECKING:
    from weir.gateway.kafka.connection.session import Session

_Part = m.ProduceResponse.PartitionProduceResponse


def tell_refusal(
    session: "Session",
    part: _Part,
    failure: BaseException,
    *,
    key: tuple[str | bytes, int],
    version: int,
    response: m.ProduceResponse,
) -> None:
    """Fill in the partition's answer, and the leader's address beside it."""
    part.error_code, part.error_message = produce_code(failure, version), text_of(failure)
    if isinstance(failure, BadRecordsError):
        part.record_errors = failure.told
    if part.error_code == Code.NOT_LEADER_OR_FOLLOWER:
        _tell_leader(session, response, part, key)


def _tell_leader(
    session: "Session", response: m.ProduceResponse, part: _Part, key: tuple[str | bytes, int]
) -> None:
    try:
        leader = session.nodes.leader(session.services.catalog.find(*key))
    except WeirError:
        return  # it is gone, too
    if leader is None:
        return
    node, epoch = leader
    part.current_leader = m.ProduceResponse.LeaderIdAndEpoch(leader_id=node.node_id, leader_epoch=epoch)
    if all(one.node_id != node.node_id for one in response.node_endpoints):
        response.node_endpoints.append(
            m.ProduceResponse.NodeEndpoint(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        )
