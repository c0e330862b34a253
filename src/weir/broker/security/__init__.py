"""Who somebody is, what they may do, and what happens when that changes."""
