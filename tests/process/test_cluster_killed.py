"""A cluster of real processes under load from official clients: restarted, killed and stopped in turn.

Short forms of `make soak`: a broker and a bookie each, and, as a part of `make soak`, all of them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from weir.testing.soak.cluster_process import ClusterProcess
from weir.testing.soak.run import clients_of, kill, restart, stop_for, strike

pytestmark = [pytest.mark.process, pytest.mark.soak]

#: Longer than a lease: others take over what the stopped broker had, and it wakes up as one that has nothing.
STOPPED_S = 7


#: Few messages, so that the machine has time for the processes that start.
PAUSE_S = 0.03


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path)
    yield process
    process.close()


@pytest.fixture
def small_cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path, "--brokers", "2")
    yield process
    process.close()


@pytest.mark.timeout(390)
def test_nothing_acknowledged_is_lost_when_a_broker_and_a_bookie_are_restarted_and_others_die(
    small_cluster: ClusterProcess,
) -> None:
    cluster = small_cluster.start()
    with clients_of(cluster, PAUSE_S) as clients:
        clients.wait_progress()
        for role in ("broker", "bookie"):
            strike(cluster, clients, cluster.nodes(role)[0], "restart", restart)
        assert clients.refused() == []
        broker, bookie = cluster.nodes("broker")[1], cluster.nodes("bookie")[1]
        cluster.kill(broker)
        kill(cluster, bookie)
        cluster.wait_replaced(broker)
        clients.wait_progress(8)
        assert clients.stop() == []
    assert cluster.stop() == 0


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
