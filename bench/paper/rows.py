"""What the paper measured: its sixteen networks (Table 1) and what its Tables 2, 3 and 4 say of them; and its shapes trained otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Training = Literal["normal", "pgd", "robust"]
HOW = {"normal": "plain cross-entropy", "pgd": "projected gradient steps", "robust": "interval bounds in the loss"}


@dataclass(frozen=True)
class PaperRow:
    """One network of the paper. `zoo` names its shape; seconds are medians on a V100; Table 3's are of DeepPoly on 14 cores. `table` 0: a
    shape of the paper's, trained as the paper did not, so without numbers of its own."""

    key: str
    model: str
    zoo: str
    told: str  # its training, as the paper says it
    training: Training
    table: int
    epsilon: Fraction
    images: int
    candidates: int
    crown_ibp: int
    verified: int
    crown_ibp_seconds: float
    seconds: float
    deeppoly: tuple[int, int, float] | None = None  # of 500 images: candidates, verified, seconds

    @property
    def dataset(self) -> str:
        return "mnist" if self.zoo.startswith("mnist") else "cifar"


def _row(key: str, model: str, zoo: str, told: str, table: int, epsilon: tuple[int, int], *numbers: float,
         deeppoly: tuple[int, int, float] | None = None) -> PaperRow:  # fmt: skip
    candidates, crown, verified, crown_seconds, seconds = numbers
    training: Training = {"Normal": "normal", "PGD": "pgd"}.get(told, "robust")  # type: ignore[assignment]
    counts, images = (int(candidates), int(crown), int(verified)), 10_000 if table == 2 else 1_000
    return PaperRow(key, model, zoo, told, training, table, Fraction(*epsilon), images, *counts, crown_seconds, seconds, deeppoly)


CROWN = "CROWN-IBP"
ROWS: dict[str, PaperRow] = {
    r.key: r
    for r in (
        _row("mnist-6x500", "6x500", "mnist-6x500", "Normal", 2, (8, 255), 9844, 0, 7291, 130e-6, 9.06e-3, deeppoly=(493, 334, 8.3)),
        _row("mnist-convbig", "ConvBig", "mnist-convbig", "DiffAI", 2, (3, 10), 9703, 5312, 8809, 220e-6, 537e-6, deeppoly=(487, 441, 12)),
        _row("mnist-convsuper", "ConvSuper", "mnist-convsuper", "Normal", 2, (8, 255), 9901, 0, 8885, 300e-6, 0.266,
             deeppoly=(495, 428, 271)),
        _row("mnist-ibplarge-0.2", "IBP_large_0.2", "mnist-ibplarge", CROWN, 2, (129, 500), 9895, 4071, 7122, 190e-6, 9.04e-3),
        _row("mnist-ibplarge-0.4", "IBP_large_0.4", "mnist-ibplarge", CROWN, 2, (3, 10), 9820, 9332, 9338, 190e-6, 2.92e-3),
        _row("cifar-6x500", "6x500", "cifar-6x500", "Normal", 2, (1, 500), 5607, 0, 4519, 200e-6, 8.04e-3, deeppoly=(282, 219, 15)),
        _row("cifar-convbig", "ConvBig", "cifar-convbig", "DiffAI", 2, (8, 255), 4599, 1654, 2650, 320e-6, 730e-6, deeppoly=(226, 127, 38)),
        _row("cifar-convlarge", "ConvLarge", "cifar-convlarge", "DiffAI", 2, (8, 255), 4615, 1672, 2838, 900e-6, 4.54e-3,
             deeppoly=(232, 138, 309)),
        _row("cifar-ibplarge-2", "IBP_large_2_255", "cifar-ibplarge", CROWN, 2, (2, 255), 7082, 5450, 5588, 820e-6, 12.3e-3),
        _row("cifar-ibplarge-8", "IBP_large_8_255", "cifar-ibplarge", CROWN, 2, (8, 255), 4540, 3289, 3298, 270e-6, 3.83e-3),
        _row("resnettiny-pgd", "ResNetTiny", "resnettiny", "PGD", 4, (1, 500), 768, 0, 651, 5.3, 11.7),
        _row("resnet18-pgd", "ResNet18", "resnet18", "PGD", 4, (1, 500), 823, 0, 648, 60, 397),
        _row("resnettiny-diffai", "ResNetTiny", "resnettiny", "DiffAI", 4, (8, 255), 371, 203, 244, 5, 4.03e-3),
        _row("skipnet18-diffai", "SkipNet18", "skipnet18", "DiffAI", 4, (8, 255), 321, 114, 260, 40, 16.5e-3),
        _row("resnet18-diffai", "ResNet18", "resnet18", "DiffAI", 4, (8, 255), 372, 138, 268, 26, 16.9e-3),
        _row("resnet34-diffai", "ResNet34", "resnet34", "DiffAI", 4, (8, 255), 356, 126, 229, 59, 34.5e-3),
    )
}  # fmt: skip

# Each shape in the way of training that the paper's row of it lacks: normal networks at a radius of 1/500, robust ones at their shape's.
_RADII: dict[str, tuple[Training, int, int]] = {
    "mnist-6x500": ("robust", 8, 255),
    "cifar-6x500": ("robust", 2, 255),
    "mnist-convbig": ("normal", 2, 255),
    "mnist-convsuper": ("robust", 8, 255),
    "mnist-ibplarge": ("normal", 2, 255),
    **dict.fromkeys(("cifar-convbig", "cifar-convlarge", "cifar-ibplarge", "skipnet18", "resnet34"), ("normal", 1, 500)),
}
OTHERS: dict[str, PaperRow] = {
    f"{zoo}-{how}": PaperRow(f"{zoo}-{how}", zoo, zoo, "", how, 0, Fraction(a, b), 0, 0, 0, 0, 0.0, 0.0)
    for zoo, (how, a, b) in _RADII.items()
}
EVERY = {**ROWS, **OTHERS}

PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "quick": ("a trial of the whole: two small networks, few images", ("mnist-6x500", "cifar-6x500")),
    "table2": ("the medium networks: CR-IBP, plain intervals and polytriton", tuple(k for k, r in ROWS.items() if r.table == 2)),
    "table3": ("the medium networks whose neurons are all substituted back, too", tuple(k for k, r in ROWS.items() if r.deeppoly)),
    "kinds": ("shapes trained as the paper did not, beside it", tuple(OTHERS)),
    "table4": ("the residual networks", tuple(k for k, r in ROWS.items() if r.table == 4)),
}
METHODS = {
    "polytriton": "polytriton", "crown-ibp": "CR-IBP", "ibp": "intervals", "deeppoly": "DeepPoly",
}  # fmt: skip
