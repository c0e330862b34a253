"""The mutations of the Kafka scenario, entered by the modules beside, and the plans in which mistakes matter."""

from dataclasses import replace
from typing import Any

from weir.model.ledger import Quorum
from weir.stream.settings import StreamSettings
from weir.testing.mutation import Mutations, often
from weir.testing.storage.plan import Fault

KAFKA_MUTATIONS = Mutations()
mutation = KAFKA_MUTATIONS.add

CRASHES = often(Fault.CRASH_CLIENT, Fault.LEASES)
RESTARTS = often(Fault.CRASH_CLIENT, Fault.RESTART_BOOKIE)
LOST = often(Fault.LOST_CONNECTIONS, Fault.SLOW_LINK)
SLOW_STATE = StreamSettings(quorum=Quorum(3, 2, 2), state_pause_s=5.0, retry_pause_s=0.05, roll_entries=20)
QUICK_STATE = replace(SLOW_STATE, state_pause_s=0.05)
#: A snapshot of what is known of producers and transactions after each batch.
SNAPSHOTS = {"stamps_snapshot_every": 1}
#: Who is there, so that a mistake is not lost among others.
NOBODY: dict[str, Any] = {
    "plain": 0,
    "idempotent": 0,
    "writers": 0,
    "pipelines": 0,
    "processors": 0,
    "members": 0,
    "pulsar": False,
    "static": False,
    "cooperative": False,
    "delayed": 0.0,
    "deletes": False,
    "table": False,
    "modern": 0.0,
    "overwrites": 0.0,
}
IDEMPOTENT = {**NOBODY, "idempotent": 2, "messages": 40, "in_parts": 1}
WRITERS = {**NOBODY, "writers": 2, "readers": 3, "aborts": 0.4, "in_parts": 2}
MODERN = {**WRITERS, "instances": 1, "modern": 1.0}
DELAYS = {**WRITERS, "delayed": 0.5}
PIPELINES = {**NOBODY, "idempotent": 1, "writers": 1, "pipelines": 1, "instances": 2, "aborts": 0.4}
PROCESSORS = {**NOBODY, "idempotent": 2, "processors": 3, "in_parts": 2, "aborts": 0.1}
MEMBERS = {**NOBODY, "idempotent": 2, "members": 3, "in_parts": 2}
