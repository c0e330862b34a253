"""Values only: identifiers, ledger metadata, limits, and the one error tree."""
