"""The holding area of a stream: messages that may not be seen yet."""
