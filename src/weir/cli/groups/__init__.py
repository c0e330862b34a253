"""`weir groups`: consumers of every protocol, found, moved and set."""
