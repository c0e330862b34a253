"""The metadata store in memory: one core, and a client of it for each node. Nothing survives the process."""

from weir.meta.local import LocalCore, LocalMeta

#: The shared state; it outlives the nodes whose clients use it, and its clock ends their leases.
MemoryCore = LocalCore
#: One node's client: its leases are renewed by its own tasks, so they end when the node dies.
MemoryMeta = LocalMeta
