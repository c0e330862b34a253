"""A stored batch as the bytes of a Pulsar message.

Batches that Pulsar producers sent are passed on as they came. Those of other protocols will be translated through
`model.Message` when there are others; this is where.
"""

from weir.model.batch import Batch, BatchFormat
from weir.model.errors import NotAllowedError
from weir.model.ids import Buffer


def translate(batch: Batch) -> Buffer:
    """The message from its magic on, as it follows a CommandMessage."""
    if batch.format is BatchFormat.PULSAR:
        return batch.payload
    raise NotAllowedError(
        f"the batch at offset {batch.base_offset} was written by a {batch.format.name.lower()} producer",
        hint="Pulsar consumers cannot read it yet; use a consumer of that protocol",
    )
