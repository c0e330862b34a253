"""Samples of every codec, and the fuzzing of decoders."""
