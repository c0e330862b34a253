"""The simulated world: loop, clocks, disks, network, nodes."""
