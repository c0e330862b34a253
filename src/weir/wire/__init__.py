"""Sans-IO codecs: bytes to values and back, for both sides of every protocol and file."""
