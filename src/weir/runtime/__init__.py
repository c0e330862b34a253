"""The only access to clock, network, disk and randomness: real drivers, and interfaces for the simulation."""

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
