"""Pulsar's binary protocol as bytes and values, for both roles: broker and client.

`frames` cuts a stream into commands, `message` seals and opens what rides with them, `commands` names them all,
`hot` builds the ones that are sent once per entry, `refusals` says no in the protocol's own way; `batch`,
`compression` and `ids` are about payloads. The messages themselves are generated: `proto.api`.
"""
