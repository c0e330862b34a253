"""Ledgers whose copy in the lake is read: copying them, reading the copies, letting the ledgers go."""
