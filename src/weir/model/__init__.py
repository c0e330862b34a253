"""Values without I/O: ids, messages, policies, and the error tree."""
