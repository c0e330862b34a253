"""A replicated ledger for its writer and its readers: quorums, fencing, recovery, repair."""
