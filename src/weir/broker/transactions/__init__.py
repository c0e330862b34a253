"""Transactions: their coordinator, their index in each topic, delayed messages in them."""
