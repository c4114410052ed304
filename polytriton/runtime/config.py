"""How a Plan is run: everything that changes speed and no bound beyond rounding, but for `skips`. The default is what nobody has tuned.

`polytriton tune` looks for a better one and leaves it in the artifact; the runtime only reads it. No value here can make a
result unsound (beyond the stated model of split products, where one names them): a form that a convolution, a type or a machine
does not admit is not taken (products.py), and every form sums the same terms, which the rounding term counts in any order.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from polytriton.passes.windows import DENSE_SHARE

AUTO, LIBRARY, PLANAR, SHIFTS, PLANES, GATHER = FORMS = ("auto", "library", "planar", "shifts", "planes", "gather")
DTYPES = ("float32", "float64", "tf32x3", "bf16x6")
TILE_KEYS = ("BM", "BN", "BK", "BR", "BQ", "BS", "SK", "RM", "RN")


@dataclass(frozen=True)
class Tile:
    """What one generated kernel is emitted with in place of its defaults: tile sizes by name, warps, stages; 0 keeps a default."""

    constants: dict[str, int] = field(default_factory=dict)
    warps: int = 0
    stages: int = 0


@dataclass(frozen=True)
class Config:
    """`convs` names the form of single convolutions (`conv_key`), `tiles` the tiles of single kernels (kernels/choose.py).

    threads 0: torch's own choice. dtype: what `--dtype auto` tries first, "" for its own rule; split products (tf32x3, bf16x6) on GPUs
    only, where a session was allowed them by name. block: bytes of the plan's count that a row block takes, for larger ones leave the
    caches; least: rows it has at least. taps: values of a product that a thread makes before it adds them up, half as many in float64.
    narrow and short: input channels, and values a window's line has, up to which `auto` takes a product and shifted sums. leave: the share
    of a block's rows that must be decided before the others are moved together. counts: leading bits in which row counts may differ, since
    libraries prepare a convolution anew for every count. split: values below which one thread does a row pass. rooms: by kernel, for how
    many blocks an SM the compiler must make room, where its own choice spills registers. lanes: whether independent branches run on
    streams of their own on a GPU (kernels/lanes.py), which costs memory and a launch a branch. whole: the share of an image's cells from
    which on a window becomes all of it (passes/windows.py). skips: by the target of a bound program, the nodes in front of which no
    candidate bound is taken (passes/schedule.py): the only choice by which bounds may be looser. graphs: whether a GPU captures a
    program's launches and replays them.
    """

    threads: int = 0
    dtype: str = ""
    block: int = 96 << 20
    least: int = 16
    taps: int = 1 << 18
    narrow: int = 8
    short: int = 192
    leave: float = 0.0
    counts: int = 4
    split: int = 1 << 16
    lanes: bool = True
    convs: dict[str, str] = field(default_factory=dict)
    tiles: dict[str, Tile] = field(default_factory=dict)
    rooms: dict[str, int] = field(default_factory=dict)
    whole: float = DENSE_SHARE
    skips: dict[str, list[str]] = field(default_factory=dict)
    graphs: bool = True

    def __post_init__(self) -> None:
        least = {"threads": 0, "block": 1, "least": 1, "taps": 1, "narrow": 0, "short": 0, "leave": 0, "counts": 1, "split": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}={getattr(self, name)} is below {low}")
        if self.leave >= 1:
            raise ValueError(f"leave={self.leave} is no share below 1")
        if self.dtype not in ("", *DTYPES):
            raise ValueError(f"dtype={self.dtype!r} is none of {', '.join(DTYPES)}")
        if not 0 < self.whole <= 1:
            raise ValueError(f"whole={self.whole} is no share of an image: above 0, at most 1")
        if not all(isinstance(nodes, list) and all(isinstance(n, str) for n in nodes) for nodes in self.skips.values()):
            raise ValueError("skips names lists of nodes")
        for name in ("lanes", "graphs"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r} is neither true nor false")
        if odd := sorted(set(self.convs.values()) - set(FORMS)):
            raise ValueError(f"there is no convolution form {odd[0]!r}")
        if any(not isinstance(blocks, int) or not 1 <= blocks <= 32 for blocks in self.rooms.values()):
            raise ValueError("room is made for one block or more, up to 32")
        if self.threads > 4096:
            raise ValueError(f"threads={self.threads} is above 4096")
        for key, tile in self.tiles.items():
            if set(tile.constants) - set(TILE_KEYS) or any(not _power(v) for v in tile.constants.values()):
                raise ValueError(f"tile {key}: sizes are powers of two, named {', '.join(TILE_KEYS)}")
            if tile.warps not in (0, 1, 2, 4, 8, 16) or not 0 <= tile.stages <= 8:
                raise ValueError(f"tile {key}: {tile.warps} warps, {tile.stages} stages")

    def changes(self) -> dict[str, Any]:
        """What differs from the default, as plain data."""
        plain, default = asdict(self), asdict(DEFAULT)
        return {f.name: plain[f.name] for f in fields(self) if plain[f.name] != default[f.name]}

    @staticmethod
    def of(changes: dict[str, Any]) -> Config:
        """The configuration with these changes; ValueError where they are none."""
        if odd := set(changes) - {f.name for f in fields(Config)}:
            raise ValueError(f"a configuration has no {sorted(odd)[0]!r}")
        tiles = changes.get("tiles")
        for tile in tiles.values() if isinstance(tiles, dict) else ():
            if isinstance(tile, dict) and (odd := set(tile) - {f.name for f in fields(Tile)}):
                raise ValueError(f"a tile has no {sorted(odd, key=str)[0]!r}")
        import msgspec  # here: what runs on a GPU needs no more than torch and Triton (bench/gpu)

        try:
            return msgspec.convert(changes, Config)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error


def _power(n: int) -> bool:
    return isinstance(n, int) and 1 <= n <= 4096 and n & (n - 1) == 0


DEFAULT = Config()


def conv_key(rows: tuple[int, int, int], weight: tuple[int, ...], stride: tuple[int, int], groups: int) -> str:
    """A convolution by what its speed depends on: `32x3 3x3 s1 on 6x6` (channels of rows and operand, kernel, stride, window)."""
    h, w, c = rows
    more = f" g{groups}" if groups > 1 else ""
    s = f"s{stride[0]}" if stride[0] == stride[1] else f"s{stride[0]},{stride[1]}"
    return f"{c}x{weight[1]} {weight[2]}x{weight[3]} {s}{more} on {h}x{w}"
