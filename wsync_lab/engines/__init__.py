"""Inference engines behind one interface: the only way to generate, and to receive weights."""
