"""Load balancing: brokers measure load by bundle, and an elected leader moves and splits bundles."""
