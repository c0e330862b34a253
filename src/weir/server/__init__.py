"""Configuration and the composition root, which wires all parts together."""
