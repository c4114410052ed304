"""Cubins kept between runs. A store that cannot be read or written costs time, never an answer.

An entry is one file, written whole or not at all: the SHA-256 of its key and the rest, the report as JSON, the cubin. The hash
finds damage, not forgery: nothing is read or kept where others may write, for what is read here is run.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from polytriton.ir.launches import Kernel
from polytriton.kernels.identity import identity
from polytriton.kernels.spec import Report
from polytriton.knobs import SUMMARY, is_own, note

FORMAT = 4  # of the entries and of what the worker tells the compiler
ENTRIES = 4096  # the least recently used beyond these are dropped


def key(kernel: Kernel, target: str, triton: str, tools: Mapping[str, str]) -> str:
    """The name of an entry: another format of entries has other names."""
    return hashlib.sha256(b"%d " % FORMAT + identity(kernel, target, triton, tools)).hexdigest()


class Store:
    """The entries of one folder, or of none; after the first failure to write, one note and no further try."""

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and os.path.lexists(folder) and not is_own(folder):
            note(SUMMARY, f"machine code is not kept in {folder}: others may write there")
            folder = None
        self.folder, self.writes = folder, folder is not None

    def get(self, name: str) -> tuple[Report, bytes] | None:
        if self.folder is None:
            return None
        path = self.folder / f"{name}.cubin"
        try:
            digest, body = path.read_bytes().split(b"\n", 1)
            if digest != _digest(name, body):
                raise ValueError("its hash differs")
            report, cubin = Report.decode(body)
        except OSError:
            return None
        except ValueError as error:
            note(SUMMARY, f"the cached {path} is not used: {error}")
            return None
        with suppress(OSError):
            os.utime(path)
        return replace(report, cached=True), cubin

    def put(self, name: str, report: Report, cubin: bytes) -> None:
        if self.folder is None or not self.writes:
            return
        body = report.encode(cubin)
        made = self.folder / f".{name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                made.write_bytes(_digest(name, body) + b"\n" + body)
                made.replace(self.folder / f"{name}.cubin")
            except BaseException:
                made.unlink(missing_ok=True)
                raise
        except OSError as error:
            self.writes = False
            note(SUMMARY, f"kernels are not cached in {self.folder}: {error.strerror or error}")

    def trim(self) -> None:
        if self.folder is None or not self.writes:
            return
        with suppress(OSError):
            kept = sorted(self.folder.glob("*.cubin"), key=lambda p: p.stat().st_mtime)
            for old in kept[:-ENTRIES]:
                old.unlink(missing_ok=True)


def _digest(name: str, body: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + body).hexdigest().encode()
