"""All-reduce and broadcast of our own on GPUs, whose kernels write the probe page while they run.

`sources` finds the CUDA C++, `compiler` turns it into machine code once per source, architecture and
compiler, `memory` lays out what kernels and host share, `ring` launches. Needs CuPy (the extra `cuda`);
only `ring` needs a GPU.
"""
