"""Weir's transaction markers as Kafka's control batches."""

from weir.model.batch import Batch, BatchFlags
from weir.model.errors import WireError
from weir.model.ids import Buffer
from weir.wire.kafka.records import patched
from weir.wire.kafka.records_build import control_batch
from weir.wire.marker import decode_marker

#: What a marker takes in an answer: they are all alike.
MARKER_BYTES = len(control_batch(0, 0, True, 0))


def marker_records(batch: Batch, leader_epoch: int) -> list[Buffer]:
    """The control batch that ends the transaction for a reader of its partition."""
    if batch.stamp is None:
        raise WireError(f"the marker at {batch.base_offset} is nobody's")
    commit = not batch.flags & BatchFlags.ABORT
    made = control_batch(batch.stamp.producer_id, batch.stamp.epoch, commit, decode_marker(batch.payload))
    return patched(made, batch.base_offset, leader_epoch)
