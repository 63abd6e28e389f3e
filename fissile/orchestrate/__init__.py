"""Kernel orchestration: a primitive graph becomes a plan of kernels (Korch section 4)."""
