"""`weir functions`: deploy, change and watch functions of messages."""
