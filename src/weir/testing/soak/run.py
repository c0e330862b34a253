"""The soak: trouble for every process in turn while clients work; then all that was acknowledged is counted.

python -m weir.testing.soak.run --minutes 30
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from weir.testing.processes.both_clients import Kafka
from weir.testing.soak import kafka_load, pulsar_load
from weir.testing.soak.cluster_process import ClusterProcess, Node
from weir.testing.soak.kafka_load import GroupLoad, IdempotentLoad, TransactionalLoad
from weir.testing.soak.pulsar_load import PulsarLoad

_IDEMPOTENT, _TRANSACTIONAL, _PULSAR = "soak-idempotent", "soak-transactions", "soak-pulsar"
#: Nobody may stay without answers for longer than this after trouble, whatever it was.
_RECOVERS_WITHIN_S = 120.0
_PAUSE_S = 0.004


@dataclass(frozen=True, slots=True)
class Trouble:
    """What was done to whom, and the longest pause that each client saw until it worked again."""

    action: str
    role: str
    pauses_s: dict[str, float]


class Clients:
    """All loads of both protocols; producers send, or begin a transaction, after pauses of so long."""

    def __init__(self, cluster: ClusterProcess, pause_s: float) -> None:
        kafka = Kafka(cluster.kafka)
        kafka.create(_IDEMPOTENT, kafka_load.PARTITIONS)
        kafka.create(_TRANSACTIONAL, kafka_load.PARTITIONS)
        kafka.create(_PULSAR, pulsar_load.PARTITIONS)
        self._idempotent = IdempotentLoad(cluster.kafka, _IDEMPOTENT, pause_s)
        self._group = GroupLoad(cluster.kafka, _IDEMPOTENT)
        self._transactional = TransactionalLoad(cluster.kafka, _TRANSACTIONAL, pause_s)
        self._pulsar = PulsarLoad(
            cluster.pulsar_url,
            f"persistent://public/default/{_PULSAR}",
            pause_s,
            log_file=str(cluster.folder / "pulsar.log"),
        )
        self._loads: Sequence[IdempotentLoad | GroupLoad | TransactionalLoad | PulsarLoad]
        self._loads = (self._idempotent, self._group, self._transactional, self._pulsar)

    def counts(self) -> dict[str, int]:
        return {load.name: load.count for load in self._loads}

    def wait_progress(self, more: int = 20) -> None:
        """Until each of them has done so much more."""
        before = self.counts()
        deadline = time.monotonic() + _RECOVERS_WITHIN_S
        while any(count < before[name] + more for name, count in self.counts().items()):
            stuck = {name: count - before[name] for name, count in self.counts().items()}
            assert time.monotonic() < deadline, f"no progress after {_RECOVERS_WITHIN_S:g} s: {stuck}"
            time.sleep(0.05)

    def pauses(self) -> dict[str, float]:
        return {load.name: load.pauses.longest() for load in self._loads}

    def refused(self) -> list[str]:
        """What producers were told that is neither an acknowledgement nor an end that they wanted."""
        loads = (self._idempotent, self._transactional, self._pulsar)
        return [f"{load.name}: {failure}" for load in loads for failure in load.failures]

    def stop(self) -> list[str]:
        """End them; answers everything that was promised and is not so."""
        self._transactional.stop()
        self._idempotent.stop()
        self._group.wait_for(self._idempotent.acknowledged)
        self._group.stop()
        self._pulsar.stop()
        wrong = {
            self._idempotent.name: self._idempotent.wrong(),
            self._group.name: self._group.missing(self._idempotent.acknowledged),
            self._transactional.name: self._transactional.wrong(),
            self._pulsar.name: self._pulsar.wrong(),
        }
        return [f"{name}: {fault}" for name, faults in wrong.items() for fault in faults]


@contextmanager
def clients_of(cluster: ClusterProcess, pause_s: float = _PAUSE_S) -> Iterator[Clients]:
    """Loads that are ended whatever happens."""
    clients = Clients(cluster, pause_s)
    try:
        yield clients
    except BaseException:
        for load in clients._loads:
            load._stopping.set()
        clients._pulsar._done.set()
        raise


def kill(cluster: ClusterProcess, node: Node) -> None:
    cluster.kill(node)
    cluster.wait_replaced(node)


def restart(cluster: ClusterProcess, node: Node) -> None:
    cluster.restart(node)


def stop_for(seconds: float) -> Callable[[ClusterProcess, Node], None]:
    def stop(cluster: ClusterProcess, node: Node) -> None:
        cluster.suspend(node)
        time.sleep(seconds)
        cluster.resume(node)

    return stop


def strike(
    cluster: ClusterProcess,
    clients: Clients,
    node: Node,
    action: str,
    act: Callable[[ClusterProcess, Node], None],
) -> Trouble:
    """Do it, wait until everyone works again, and say how long each did not."""
    clients.pauses()
    act(cluster, node)
    clients.wait_progress(8)
    return Trouble(action, node.role, clients.pauses())


def report(troubles: Sequence[Trouble]) -> str:
    """A table: what was done to whom, how often, and the median and longest pause of each client."""
    kinds: dict[tuple[str, str], list[Trouble]] = defaultdict(list)
    for trouble in troubles:
        kinds[trouble.action, trouble.role].append(trouble)
    names = list(troubles[0].pauses_s) if troubles else []
    lines = [" | ".join(["what", "times", *(f"{name}, s (median/longest)" for name in names)])]
    lines.append(" | ".join(["---"] * (2 + len(names))))
    for (action, role), of_kind in kinds.items():
        cells = []
        for name in names:
            values = [trouble.pauses_s[name] for trouble in of_kind]
            cells.append(f"{median(values):.2f} / {max(values):.2f}")
        lines.append(" | ".join([f"{action} {role}", str(len(of_kind)), *cells]))
    return "\n".join(f"| {line} |" for line in lines)


def soak(
    cluster: ClusterProcess, minutes: float, *, stop_s: float, rng: random.Random
) -> tuple[list[Trouble], list[str]]:
    """Rounds of trouble, each process in turn, until the time is over: what it did, and what went wrong."""
    troubles: list[Trouble] = []
    deadline = time.monotonic() + minutes * 60
    actions = (("SIGKILL", kill), (f"SIGSTOP {stop_s:g} s", stop_for(stop_s)))
    with clients_of(cluster) as clients:
        clients.wait_progress(100)
        while time.monotonic() < deadline:
            for action, act in actions:
                names = [node.name for node in cluster.nodes()]
                rng.shuffle(names)
                for name in names:
                    if time.monotonic() > deadline:
                        break
                    node = next(each for each in cluster.nodes() if each.name == name)
                    trouble = strike(cluster, clients, node, action, act)
                    troubles.append(trouble)
                    longest = ", ".join(f"{who} {pause:.2f} s" for who, pause in trouble.pauses_s.items())
                    _say(f"{action} {name}: {longest}")
        _say("counting what was acknowledged:", clients.counts())
        wrong = clients.stop()
    return troubles, wrong


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--stop-seconds", type=float, default=20, help="how long a stopped process stays so")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--bookies", type=int, default=3)
    parser.add_argument("--etcd-members", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="do not delete the data folder")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="weir-soak-"))
    cluster = ClusterProcess(
        folder,
        *("--brokers", str(args.brokers), "--bookies", str(args.bookies)),
        *("--etcd-members", str(args.etcd_members)),
    )
    try:
        cluster.start()
        troubles, wrong = soak(cluster, args.minutes, stop_s=args.stop_seconds, rng=random.Random(args.seed))
        code = cluster.stop()
    finally:
        cluster.close()
    _say(report(troubles))
    if code:
        wrong.append(f"the cluster ended with {code}")
    for fault in wrong:
        _say("WRONG:", fault)
    if not wrong:
        _say("everything that was acknowledged is there, once and in order as promised")
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        _say(f"the logs are in {folder}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
