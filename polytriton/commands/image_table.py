"""What a terminal says of images: a line an image where several radii were asked, a line a radius, and the last line of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from polytriton.commands.screen import table
from polytriton.show.words import share

if TYPE_CHECKING:
    from polytriton.pages.facts import RadiusFacts
    from polytriton.runs.records import Record


def show_images(records: Sequence[Record], file: TextIO) -> None:
    """A row an image, a column a radius: the verdicts."""
    from polytriton.pages.facts import image_key, is_misclassified, network_names, radius_facts, radius_name

    radii = list(dict.fromkeys((f.epsilon, f.norm) for f in radius_facts(records)))
    names = network_names(records)
    images: dict[tuple[str, ...], dict[tuple[str | None, str], Record]] = {}
    for r in records:
        images.setdefault(image_key(r), {})[r.epsilon, r.norm] = r
    several, noted = len(names) > 1, any(map(is_misclassified, records))
    around = [radius_name(*radius) for radius in radii]
    head = [*(["network"] if several else []), "image", *around, "seconds", *(["note"] if noted else [])]
    rows = []
    for held in images.values():
        first = next(iter(held.values()))
        verdicts = [held[e].verdict if e in held else "-" for e in radii]
        note = next((r.note[:100] for r in held.values() if is_misclassified(r)), "")
        row = [*([names[first.network]] if several else []), first.property, *verdicts, f"{sum(r.seconds for r in held.values()):.3f}"]
        rows.append([*row, *([note] if noted else [])])
    table(head, rows, file=file, right=(several + 1 + len(radii),))
    print(file=file)


def show_radii(found: Sequence[RadiusFacts], names: Mapping[str, str], file: TextIO) -> None:
    """A row a radius: of so many images so many are verified."""
    several = len({f.network for f in found}) > 1
    head = [*(["network"] if several else []), "epsilon", "images", "verified", "falsified", "open", "misclassified", "asked", "seconds"]
    rows = [
        [
            *([names[f.network]] if several else []), f.name, f.images, f.verified, f.falsified, f.open, f.misclassified,
            f.asked, f"{f.seconds:.3f}",
        ]
        for f in found
    ]  # fmt: skip
    table(head, rows, file=file, right=range(1 + several, len(head)))
    print(file=file)


def shares_line(found: Sequence[RadiusFacts], *, labelled: bool) -> str:
    """`accuracy 97.0 %, verified 61.0 %, falsified 12.0 %, open 24.0 %`; of several radii what is verified at each.

    `labelled`: somebody said what the images show; to its own answers a network is always accurate.
    """
    first = found[0]
    accuracy = [f"accuracy {share((first.images - first.misclassified) / first.images)}"] if labelled else []
    if len(found) == 1:
        counts = {"verified": first.verified, "falsified": first.falsified, "open": first.open}
        return ", ".join(accuracy + [f"{name} {share(n / first.images)}" for name, n in counts.items()])
    verified = [f"{share(f.verified / f.images)} at {f.name}" for f in found]
    return ", ".join([*accuracy, f"verified {verified[0]}", *verified[1:]])
