"""`weir demo`: the tour."""
