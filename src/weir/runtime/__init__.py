"""The only door to clock, network, disk and randomness."""

from weir.runtime.interfaces import (
    Clock,
    Connection,
    Disk,
    File,
    FileLock,
    Listener,
    Network,
    Resources,
    Runtime,
    Timer,
)

__all__ = [
    "Clock",
    "Connection",
    "Disk",
    "File",
    "FileLock",
    "Listener",
    "Network",
    "Resources",
    "Runtime",
    "Timer",
]
