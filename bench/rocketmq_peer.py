"""Apache RocketMQ 5 from Maven's central repository, as a peer: name server, broker and proxy, with sync flush."""

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.apache import free_ports
from bench.maven import Artifacts

VERSION = "5.5.0"
ARTIFACTS = Artifacts(
    f"rocketmq-{VERSION}",
    tuple(f"org.apache.rocketmq:rocketmq-{part}:{VERSION}" for part in ("proxy", "namesrv", "tools")),
)
TITLE = f"Apache RocketMQ {VERSION}"
_START_S = 120.0
_OPENED = (
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/sun.nio.ch",
)
_BROKER = """brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1=127.0.0.1
brokerRole=ASYNC_MASTER
flushDiskType=SYNC_FLUSH
autoCreateSubscriptionGroup=true
listenPort={port}
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
mappedFileSizeCommitLog=268435456
enablePropertyFilter=true
recallMessageEnable=true
"""
_PROXY = (
    '{{"rocketMQClusterName":"DefaultCluster","proxyMode":"LOCAL","namesrvAddr":"{names}","grpcServerPort":{grpc},'
    '"remotingListenPort":{remoting},"enableTopicMessageTypeCheck":true}}'
)


def missing() -> str:
    """Why it cannot run here, or nothing; the first time this downloads it."""
    return ARTIFACTS.missing()


class RocketmqPeer:
    """Runs while it is entered, with everything that it keeps in the folder."""

    def __init__(self, folder: Path, heap: str = "1g") -> None:
        self._folder = folder
        self._heap = heap
        self._names, self._broker, self._grpc, self._remoting = free_ports(4)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._grpc}"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        conf = self._folder / "conf"
        conf.mkdir(parents=True)
        names = f"127.0.0.1:{self._names}"
        (conf / "namesrv.conf").write_text(f"listenPort={self._names}\n")
        (conf / "broker.conf").write_text(_BROKER.format(port=self._broker, folder=self._folder))
        (conf / "rmq-proxy.json").write_text(_PROXY.format(names=names, grpc=self._grpc, remoting=self._remoting))
        self._start("namesrv.NamesrvStartup", "-c", str(conf / "namesrv.conf"))
        self._wait(self._names)
        self._start(
            "proxy.ProxyStartup",
            *("-pm", "LOCAL", "-n", names, "-bc", str(conf / "broker.conf"), "-pc", str(conf / "rmq-proxy.json")),
        )
        self._wait(self._grpc)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def make_topic(self, name: str, kind: str = "NORMAL", queues: int = 8) -> None:
        size = ["-r", str(queues), "-w", str(queues)]
        self._admin("updateTopic", "-t", name, *size, "-a", f"+message.type={kind}")

    def make_group(self, name: str, *, fifo: bool = False) -> None:
        self._admin("updateSubGroup", "-g", name, *(("-o", "true") if fifo else ()))

    def _admin(self, command: str, *words: str) -> None:
        """By RocketMQ's own tool; again for as long as the name server has not heard of the broker."""
        where = ["-n", f"127.0.0.1:{self._names}", "-c", "DefaultCluster"]
        deadline = time.monotonic() + _START_S
        while True:
            done = subprocess.run(
                [*self._java("256m"), "org.apache.rocketmq.tools.command.MQAdminStartup", command, *where, *words],
                env=self._environment(),
                capture_output=True,
                check=True,
            )
            if b"success" in done.stdout:
                return
            if b"clusterName exists" not in done.stdout or time.monotonic() > deadline:
                raise RuntimeError(done.stdout.decode())

    def _java(self, heap: str) -> list[str]:
        opened = [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED]
        opened.append("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED")
        home = f"-Duser.home={self._folder}"
        return ["java", f"-Xmx{heap}", home, *opened, "-cp", ARTIFACTS.classpath]

    def _environment(self) -> dict[str, str]:
        return dict(os.environ) | {"ROCKETMQ_HOME": str(self._folder)}

    def _start(self, main: str, *words: str) -> None:
        with (self._folder / f"{main}.out").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*self._java(self._heap), f"org.apache.rocketmq.{main}", *words],
                    env=self._environment(),
                    stdout=log,
                    stderr=log,
                )
            )

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise RuntimeError(f"{TITLE} did not start; see {self._folder}")
