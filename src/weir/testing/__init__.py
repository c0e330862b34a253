"""The simulated runtime, the cluster harness, history checkers."""
