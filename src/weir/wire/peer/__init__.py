"""What brokers say to each other: framed calls, their values and errors, and how a connection begins.

After proof (`wire.proof`) and hello, requests flow one way and answers the other, tied by the request's number
and answered in any order. docs/internals/wire.md has the layouts. To add a call: a request and an answer as frozen
dataclasses in a module of their subject, and a line in that module's table, which `calls` puts together.
"""
