"""Kernels run in Triton's interpreter here: it must be asked for before triton is imported."""

from __future__ import annotations

import os
import sys

if "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
