"""Several brokers that share topics, groups and transactions, with clients of both protocols, in simulations."""
