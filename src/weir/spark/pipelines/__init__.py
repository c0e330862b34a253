"""Declarative pipelines of Spark whose sources and sinks are topics: definitions, checks, lineage and runs."""
