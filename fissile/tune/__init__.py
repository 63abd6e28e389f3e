"""Measuring kernels and choosing by what was measured: the lazy profiling of DESIGN 3.4 on the real machine."""
