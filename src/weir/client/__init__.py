"""A small client on the same codecs as the broker, for the command line, Spark and tests.

`pulsar.PulsarClient` produces and consumes over Pulsar's binary protocol; `admin.AdminClient` speaks the admin
REST.
"""
