"""Shards of coordinators, and their operations on partitions here and on other brokers."""
