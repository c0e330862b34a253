"""Brokers and Pulsar's clients in simulation, and a broker that is a fake."""
