"""Deterministic dropout for PyTorch: the noise is integrated out."""
