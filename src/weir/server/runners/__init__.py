"""Runners beside a broker: processes of `weir up` for streams, functions and connectors."""
