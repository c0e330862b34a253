"""Commands on messages: sent, read, looked at, found, held back, traced."""
