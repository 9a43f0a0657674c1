"""Kernels in Triton's language: for NVIDIA GPUs, and interpreted on a CPU where TRITON_INTERPRET=1."""
