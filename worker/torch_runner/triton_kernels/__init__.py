"""Kernels in Triton's language: for NVIDIA GPUs, and interpreted on a CPU with TRITON_INTERPRET=1. Import triton here only."""
