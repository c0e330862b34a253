"""Record batches in, offsets out."""
