"""What a simulation itself can fail with. Not in the product's error tree: no product code may catch these."""


class SimulationError(Exception):
    """The simulated world, not the code under test, says that something is wrong."""


class DeadlockError(SimulationError):
    """Nothing is ready, no timer is left, and the scenario still waits."""


class LivelockError(SimulationError):
    """The scenario took more steps or more virtual time than its limit."""


class LoopHeldError(SimulationError):
    """One call took longer than its limit, in real CPU time: everyone else of its node would have waited."""


class NodeCrashedError(SimulationError):
    """The node is down, or went down before it could answer."""
