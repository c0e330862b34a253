"""Balance in virtual time: the real leader's rounds over a model of brokers, bundles and a load that moves."""
