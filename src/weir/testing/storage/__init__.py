"""The storage in simulation: bookies, ledger clients, faults, checkers, mutations."""
