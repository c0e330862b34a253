"""What clients call, one function each."""
