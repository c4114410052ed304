"""Folders of images, one folder a class, as torchvision's ImageFolder orders them. Pillow decodes the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polytriton.errors import UsageError

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
MOST = 1 << 30  # bytes of all images together, decoded


@dataclass(frozen=True)
class ImageFolder:
    """Its files in order; labels are the numbers of their folders by name, or None where the files lie in the folder itself."""

    path: Path
    files: Sequence[Path]
    labels: Sequence[int] | None

    def read(self, pick: slice) -> tuple[np.ndarray, np.ndarray | None]:
        """Those picked, as levels 0..255: [N, H, W] where all are grey, else [N, H, W, 3]."""
        try:
            from PIL import Image
        except ImportError:
            raise UsageError(f"reading the images of {self.path} takes Pillow", "pip install pillow, or polytriton[images]") from None
        found: list[np.ndarray] = []
        for file in self.files[pick]:
            try:
                with Image.open(file) as image:
                    self._check_size(image.size, file, found, self.files[pick][0])
                    found.append(np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB")))
            except UsageError:
                raise
            except Exception as why:  # of any of Pillow's decoders
                raise UsageError(f"cannot read the image {file}: {why}", "remove what is no image from the folder") from None
        if any(image.ndim == 3 for image in found):  # grey among coloured ones
            found = [image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in found]
        labels = None if self.labels is None else np.array(self.labels[pick], dtype=np.int64)
        return np.stack(found), labels

    def _check_size(self, size: tuple[int, int], file: Path, before: Sequence[np.ndarray], first: Path) -> None:
        """Before an image is decoded."""
        (width, height), other = size, before[0].shape[1::-1] if before else size
        if size != other:
            raise UsageError(
                f"{file} has {width}x{height} pixels, {first.name} has {other[0]}x{other[1]}",
                "scale and crop them as the network's preprocessing does, and store the results",
            )
        if 3 * width * height * (len(before) + 1) > MOST:
            raise UsageError(f"the images of {self.path} take more than {MOST >> 30} GiB", "ask for some of them: --start N --end N")


def open_folder(path: Path) -> ImageFolder:
    """Lists a folder: of classes where it has folders with images in them, else of images."""
    classes = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    held = [(file, k) for k, folder in enumerate(classes) for file in _images(folder)]
    if held:
        return ImageFolder(path, [file for file, _ in held], [k for _, k in held])
    files = _images(path)
    if not files:
        raise UsageError(
            f"the folder {path} holds neither images nor MNIST's or CIFAR's files",
            f"one folder a class with {', '.join(KINDS[:3])} in it; or name the file that holds the images",
        )
    return ImageFolder(path, files, None)


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in KINDS and p.is_file())
