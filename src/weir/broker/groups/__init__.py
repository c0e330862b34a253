"""Consumer groups: members, generations, committed offsets, and their coordinator."""
