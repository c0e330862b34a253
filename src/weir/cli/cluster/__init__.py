"""Commands on clusters, bookies and ledgers."""
