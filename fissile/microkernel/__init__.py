"""Micro-kernels: the one tile generator and the one packer, later the library for dynamic shapes (MikPoly)."""
