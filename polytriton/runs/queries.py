"""What a run asks, as plain data: a query goes to another process or machine as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from polytriton.frontend.images import load_images
from polytriton.frontend.instances import Instance
from polytriton.frontend.norm_balls import LINF
from polytriton.frontend.query import Property, check_output
from polytriton.frontend.vnnlib import read_vnnlib

if TYPE_CHECKING:
    from polytriton.api import Verifier


@dataclass(frozen=True)
class Asked:
    """A property, and for a ball the clean input at its centre."""

    prop: Property
    label: int | None = None
    clean: np.ndarray | None = None


class VnnlibFile(msgspec.Struct, frozen=True, tag="vnnlib"):
    """`text` is the file's contents where the one who reads it may not have the file."""

    path: str
    text: str | None = None

    def identity(self) -> str:
        try:
            return "vnnlib " + hashlib.sha256(Path(self.path).read_bytes()).hexdigest()
        except OSError:
            return f"vnnlib {self.path}"  # reading it will say what is wrong

    def read(self, verifier: Verifier, name: str) -> Asked:
        if verifier.joint is not None:
            return Asked(verifier.joint)
        source = Path(self.path) if self.text is None else f"{self.text}\n"  # several lines: a text, never a path
        return Asked(read_vnnlib(source, n_in=verifier.inputs, n_out=verifier.outputs, name=name))


class Certify(msgspec.Struct, frozen=True):
    """That the largest certified radius is wanted too: how narrow its bracket, as a share of it, and seconds for the search."""

    tolerance: str = "1/100"
    timeout: float | None = None


class Ball(msgspec.Struct, frozen=True, tag="ball"):
    """A ball around one image, of l-infinity or another norm. Fractions are written as text; `label` None is the network's own answer."""

    pixels: bytes
    dtype: str
    shape: tuple[int, ...]
    epsilon: str
    mean: tuple[str, ...] = ("0",)
    std: tuple[str, ...] = ("1",)
    clip: tuple[str, str] | None = None
    label: int | None = None
    targets: tuple[int, ...] | None = None
    file: str = ""  # where the image came from, and which it was there
    index: int = 0
    certify: Certify | None = None
    norm: str = LINF

    @property
    def image(self) -> np.ndarray:
        return np.frombuffer(self.pixels, dtype=np.dtype(self.dtype)).reshape(self.shape)

    @property
    def clean(self) -> np.ndarray:
        """The centre as the network's input."""
        pixels = self.image
        x = pixels / 255.0 if pixels.dtype.kind in "ui" else pixels.astype(np.float64)
        spread = (-1, *[1] * (x.ndim - 1)) if len(self.mean) > 1 else (-1,)
        mean, std = (np.array([float(Fraction(v)) for v in values]).reshape(spread) for values in (self.mean, self.std))
        return (x - mean) / std

    def identity(self) -> str:
        mean, std = _fractions(self.mean), _fractions(self.std)
        clip = None if self.clip is None else _fractions(self.clip)
        rest = (Fraction(self.epsilon), mean, std, clip, self.label, self.targets, str(np.dtype(self.dtype)), self.shape)
        wanted = ("" if self.norm == LINF else f" {self.norm}") + ("" if self.certify is None else f" {self.certify}")
        return f"ball {hashlib.sha256(self.pixels).hexdigest()} {rest}{wanted}"

    def property(self, verifier: Verifier, label: int, name: str = "", targets: tuple[int, ...] | None = None) -> Property:
        clip: Any = None if self.clip is None else _fractions(self.clip)
        return verifier.ball_property(
            self.image, Fraction(self.epsilon), label, clip=clip, mean=_fractions(self.mean), std=_fractions(self.std),
            targets=targets, norm=self.norm, name=name,
        )  # fmt: skip

    def read(self, verifier: Verifier, name: str) -> Asked:
        clean = self.clean
        label = int(verifier.predict(clean)[0].argmax()) if self.label is None else self.label
        targets = None if self.targets is None else tuple(t for t in self.targets if t != label)
        return Asked(self.property(verifier, label, name, targets), label, clean)


def _fractions(values: Iterable[str]) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, values))


class Query(msgspec.Struct, frozen=True):
    """`network` is a path as the user gave it. `listed`: both files as a list or the user spells them."""

    network: str
    name: str
    subject: VnnlibFile | Ball
    timeout: float | None = None
    listed: tuple[str, str] = ("", "")

    @property
    def epsilon(self) -> str | None:
        return self.subject.epsilon if isinstance(self.subject, Ball) else None

    @property
    def norm(self) -> str:
        """Other than l-infinity; else empty."""
        return self.subject.norm if isinstance(self.subject, Ball) and self.subject.norm != LINF else ""

    def read(self, verifier: Verifier) -> Asked:
        return self.subject.read(verifier, self.name)


def vnnlib_query(network: Path, path: Path, timeout: float | None = None, listed: tuple[str, str] | None = None) -> Query:
    name = path.name.removesuffix(".gz").removesuffix(".vnnlib")
    return Query(str(network), name, VnnlibFile(str(path)), timeout, listed or (str(network), str(path)))


def instance_queries(instances: Iterable[Instance], network: Path | None = None) -> list[Query]:
    return [vnnlib_query(network or i.onnx, i.vnnlib, i.timeout, i.names) for i in instances]


@dataclass(frozen=True)
class Balls:
    """Balls around the images of a file, each radius once and in ascending order."""

    images: Path
    epsilons: tuple[Fraction, ...]
    mean: tuple[Fraction, ...] = (Fraction(0),)
    std: tuple[Fraction, ...] = (Fraction(1),)
    clip: tuple[Fraction, Fraction] | None = None
    start: int = 0
    end: int | None = None
    label: int | None = None
    targets: tuple[int, ...] | None = None
    scale: Fraction | None = None
    layout: str = "chw"
    certify: Certify | None = None
    norm: str = LINF

    def queries(self, network: Path, verifier: Verifier) -> list[Query]:
        """One query an image and radius. Labels come from `label`, else the file, else the network's own answer."""
        held = load_images(
            self.images, self.start, self.end, verifier.input_shape, scale=self.scale, layout=self.layout,
            n_out=verifier.outputs if self.label is None else None,
        )  # fmt: skip
        if self.label is not None:
            check_output("label", self.label, verifier.outputs)
        for target in self.targets or ():
            check_output("target", target, verifier.outputs)
        made = []
        for k, pixels in enumerate(held.source):
            label = self.label if self.label is not None else None if held.labels is None else int(held.labels[k])
            name = f"{self.images.stem}[{self.start + k}]"
            for epsilon in self.epsilons:
                made.append(Query(str(network), name, self._ball(pixels, epsilon, label, self.start + k), None, (str(network), "")))
        for epsilon in self.epsilons:
            self._ball(held.source[0], epsilon, 0, 0).property(verifier, 0)  # a wrong mean, clip or radius is said before anything runs
        return made

    def _ball(self, pixels: np.ndarray, epsilon: Fraction, label: int | None, index: int) -> Ball:
        return Ball(
            np.ascontiguousarray(pixels).tobytes(), pixels.dtype.str, pixels.shape, str(epsilon), tuple(map(str, self.mean)),
            tuple(map(str, self.std)), None if self.clip is None else (str(self.clip[0]), str(self.clip[1])), label, self.targets,
            self.images.name, index, self.certify, self.norm,
        )  # fmt: skip
