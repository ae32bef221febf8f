"""Kernels for a GPU, in Triton, which comes with torch there; imported only where a tensor lies on one."""
