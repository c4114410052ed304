"""The kernels that a network needs, each once, and what for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Constant, Kernel, Launches
from polytriton.ir.script import RunScript
from polytriton.kernels.catalogue import Given, tile_key
from polytriton.kernels.choose import Tiles, Tiling, retile
from polytriton.kernels.stock import Stock


@dataclass(frozen=True)
class Use:
    """A step that launches a kernel: `%conv2 in bound %relu3`."""

    step: str
    function: str
    constants: Given
    numerics: str


@dataclass
class Emitter:
    """The kernels a network needs so far, and for which steps."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    uses: dict[str, list[Use]] = field(default_factory=dict)
    tiles: Mapping[str, Tiling] = field(default_factory=dict)  # by tile_key: what is used in place of the defaults
    asked: dict[str, Tiles] = field(default_factory=dict)  # by tile_key, what every kernel is emitted with
    stock: Stock = field(default_factory=Stock)
    programs: dict[str, Launches] = field(default_factory=dict)  # by stock.program_key
    scripts: dict[str, RunScript] = field(default_factory=dict)  # by stock.script_key

    def tiles_of(self, function: str, constants: Mapping[str, Constant], numerics: Arithmetic, default: Tiles) -> Tiles:
        """The tiles of a kernel: the default's, or those chosen for exactly this kernel."""
        key = tile_key(function, constants, numerics.name)
        tiles = retile(default, self.tiles[key], numerics) if key in self.tiles else default
        self.asked[key] = tiles
        return tiles

    def kernel(self, function: str, constants: Mapping[str, Constant], numerics: Arithmetic, tiles: Tiles, *, step: str) -> Kernel:
        made = self.stock.kernel(function, constants, numerics.name, tiles.warps, tiles.stages)
        self.kernels.setdefault(made.name, made)
        use = Use(step, function, made.constants, numerics.name)
        uses = self.uses.setdefault(made.name, [])
        if use not in uses:
            uses.append(use)
        return made
