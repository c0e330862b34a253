"""What each method of a channel does, a module per class."""
