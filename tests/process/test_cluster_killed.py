"""A cluster of real processes under load from official clients: restarted, killed and stopped in turn.

A short form of `make soak`, after a rolling restart, of which no producer may hear anything.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.soak.cluster_process import ClusterProcess
from weir.testing.soak.run import clients_of, kill, restart, stop_for, strike

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.soak]

#: Longer than a lease: others take over what the stopped broker had, and it wakes up as one that has nothing.
STOPPED_S = 7


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path)
    yield process
    process.close()


@pytest.mark.timeout(390)
def test_nothing_acknowledged_is_lost_whichever_process_is_restarted_dies_or_sleeps(
    cluster: ClusterProcess,
) -> None:
    cluster.start()
    with clients_of(cluster) as clients:
        clients.wait_progress()
        for node in cluster.nodes("broker", "bookie"):
            strike(cluster, clients, node, "restart", restart)
        assert clients.refused() == []
        for node in cluster.nodes("broker", "bookie"):
            strike(cluster, clients, node, "kill", kill)
        strike(cluster, clients, cluster.nodes("broker")[0], "stop", stop_for(STOPPED_S))
        assert clients.stop() == []
    assert cluster.stop() == 0
