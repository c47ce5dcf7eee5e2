"""numba.cuda, for programs with kernels: numba-cuda 0.30 reads a name that NumPy 2.5 removed when it first compiles one."""

from __future__ import annotations

import numpy as np
from numba import cuda

__all__ = ["cuda"]

np.row_stack = np.vstack
