"""Consumer groups: members, generations, positions, and the coordinator of all that."""
