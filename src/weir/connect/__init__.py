"""Connectors: records carried between topics and other systems (docs/adr/0048-connectors.md).

A source reads another system and writes a topic; a sink reads topics and writes another system. `definitions` says
what can be asked for, `runner` runs it in a process of its own, which speaks to Weir as any client does.
"""
