"""A small file that is there whole or not at all, whoever is killed while it is written."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Writes beside the place and moves it there: a reader sees the old file or the new one."""
    made = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(made, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
