"""A whole data folder of `weir up`, while it is stopped or for a moment frozen: checked, saved from, copied."""
