"""Topics: opening, writing, delayed messages, statistics, compaction, tiering, deletion."""
