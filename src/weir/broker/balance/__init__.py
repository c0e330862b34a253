"""Load balancing: each broker measures its load by bundle; the leader moves and splits bundles."""
