"""A simulated node's machine: it computes and remembers what a test says, and nothing by itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class SimResources:
    """Fills `Resources`; fields may be changed at any moment, CPU times only upwards."""

    loop_s: float = 0.0
    process_s: float = 0.0
    core_count: int = 1
    used_bytes: int = 64 << 20
    limit_bytes: int = 1 << 30

    def loop_cpu_s(self) -> float:
        return self.loop_s

    def cpu_s(self) -> float:
        return max(self.loop_s, self.process_s)

    def cores(self) -> int:
        return self.core_count

    def memory_bytes(self) -> int:
        return self.used_bytes

    def open_files(self) -> tuple[int, int]:
        return 0, 0

    def memory_limit_bytes(self) -> int:
        return self.limit_bytes
