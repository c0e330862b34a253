"""Half messages: where they wait, who is asked about them, and how they were decided."""
