"""What every kernel of the library should do, in plain float64 torch from the same stored numbers: an oracle, not a fast one.

Each function takes the kernel's constants and its tensors before the launch, and those after; it yields (what, fraction):
the largest difference as a fraction of what the kernel's docstring allows. Above 1 is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polytriton.arithmetic import Arithmetic
from polytriton.rounding import U64, dot_error, gamma

Tensors = Mapping[str, Tensor]
Found = Iterator[tuple[str, float]]
TINY = 1e-290


def fraction(got: Tensor, want: Tensor, allowed: Tensor) -> float:
    """The largest |got - want| / allowed; infinite where something is no number."""
    gap = (got.double() - want).abs()
    share = torch.where(gap == 0, torch.zeros_like(gap), gap / allowed.clamp(min=TINY))
    return float(torch.nan_to_num(share, nan=float("inf")).max()) if share.numel() else 0.0


@dataclass
class Oracle:
    """One launch: `c` its constants, `was` and `now` its tensors before and after, `n` its rows."""

    c: Mapping[str, Any]
    was: Tensors
    now: Tensors
    n: int
    coefficients: Arithmetic

    def check(self, function: str) -> Found:
        yield from getattr(self, function)()

    # ---- rows and tables --------------------------------------------------------------------------------

    def rows(self, size: int, name: str = "m", slot: str = "slot") -> Tensor:
        every = self.was[f"{name}_ptr"]
        at = self.was[f"{slot}_ptr"][: self.n] if f"{slot}_ptr" in self.was else torch.arange(self.n, device=every.device)
        return every[: every.numel() // size * size].view(-1, size)[at]

    def result(self, size: int) -> Tensor:
        return self.now["out_ptr"][: self.n * size].view(self.n, size)

    def row(self, name: str) -> Tensor:
        """A row array; zeros for a place that the kernel has no use for."""
        if f"{name}_ptr" not in self.was and name in ("image", "row_h", "row_w"):
            return torch.zeros(self.n, dtype=torch.int64, device=next(iter(self.now.values())).device)
        return self.was[f"{name}_ptr"][: self.n]

    def read(self, table: str, size: int, line: int, prefix: str = "") -> Tensor:
        """Each row's window of a table, [rows, size]."""
        c = self.c
        image, row_h, row_w = (self.row(k) for k in ("image", "row_h", "row_w"))
        start, plane, pitch = (c[prefix + k] for k in ("START", "PLANE", "PITCH"))
        base = image * plane + start
        if "RH" in c:
            base = base + (row_h * c["RH"] - c["OH"]) * pitch + (row_w * c["RW"] - c["OW"]) * c["C" if "C" in c else "CO"]
        q = torch.arange(size, device=base.device)
        return self.was[f"{table}_ptr"].reshape(-1)[base[:, None] + (q // line * pitch + q % line)[None]]

    def scalars(self, size: int, line: int, channels: int) -> tuple[Tensor, Found]:
        """N, the rows with the ReLU's slopes, and what the pass over them should have paid."""
        c, x = self.c, self.rows(size)
        zero = torch.zeros(self.n, dtype=torch.float64, device=x.device)
        cut = size_of_cut = fixed = size_of_fixed = charged = floor = zero
        if c["RELU"]:
            low, high, lift = (self.read(t, size, line) for t in ("below", "above", "cut"))
            terms = torch.where(x >= 0, 0.0, x.double() * lift.double())
            cut, size_of_cut = terms.sum(1) * c["SUM_ERROR"], terms.abs().sum(1)
            x = x * torch.where(x < 0, high, low)
        if c["CHARGE"]:
            charged = (x.double().abs() * self.read("t", size, line, "T_").double()).sum(1) * c["SUM_ERROR"]
            floor = self.was["floor_ptr"][self.row("image")]
            if c["BIAS"] != "none":
                q = torch.arange(size, device=x.device)
                bias = self.was["bias_ptr"].reshape(-1)[q % channels if c["BIAS"] == "line" else q]
                fixed, size_of_fixed = (x.double() * bias).sum(1), (x.double() * bias).abs().sum(1)
        return x, self._judge(cut + fixed, size_of_cut + size_of_fixed, charged + floor, size) if c["RELU"] or c["CHARGE"] else iter(())

    def _judge(self, more: Tensor, magnitude: Tensor, charge: Tensor, terms: int) -> Found:
        """constant + more and error + charge, the error rounded up for its own sums and the constant's."""
        constant, error = self.row("constant"), self.row("error")
        big = constant.abs() + magnitude
        allowed = (dot_error(terms) + 8 * U64) * magnitude + 8 * U64 * big
        yield "constant", fraction(self.now["constant_ptr"][: self.n], constant + more, allowed)
        got, want = self.now["error_ptr"][: self.n], error + charge
        yield "error", fraction(got, want, (2 * dot_error(terms) + 64 * U64) * want + 32 * U64 * big + 1e-280)
        low = want * (1 - 2 * dot_error(terms))
        yield "error paid", float("inf") if bool((got < low).any()) else 0.0

    def _product(self, want: Tensor, magnitude: Tensor, got: Tensor, terms: int) -> tuple[str, float]:
        c = self.coefficients
        k = torch.full((), float(terms), dtype=torch.float64, device=got.device)
        allowed = (float(c.product_error(k)) + gamma(terms, U64)) * magnitude + terms * c.eta * 64
        return "product", fraction(got, want, allowed)

    # ---- kernels ----------------------------------------------------------------------------------------

    def relax_rows(self) -> Found:
        size = self.c["SIZE"]
        x, paid = self.scalars(size, self.c["LINE"], self.c["C"])
        yield from paid
        if self.c["RELU"]:
            yield "rows", fraction(self.result(size), x.double(), torch.zeros_like(x, dtype=torch.float64))

    def dense_step(self) -> Found:
        k, n = self.c["K"], self.c["N"]
        x, paid = self.scalars(k, self.c["LINE"], self.c["C"])
        yield from paid
        w = self.was["w_ptr"].reshape(k, n).double()
        yield self._product(x.double() @ w, x.double().abs() @ w.abs(), self.result(n), k)

    def conv_step(self) -> Found:
        c = self.c
        h, w, co, ho, wo, ci, g, kh, kw = (c[k] for k in ("H", "W", "CO", "HO", "WO", "CI", "G", "KH", "KW"))
        x, paid = self.scalars(h * w * co, w * co, co)
        yield from paid
        weights = self.was["w_ptr"].reshape(kh, kw, g, co // g, ci // g).double()
        m = x.double().view(self.n, h, w, g, co // g)
        want = torch.zeros(self.n, ho, wo, g, ci // g, dtype=torch.float64, device=x.device)
        size = torch.zeros_like(want)
        for i in range(kh):
            for j in range(kw):
                for y in range(h):
                    for z in range(w):
                        to_y, to_x = y * c["SH"] + i * c["DH"] - c["TOP"], z * c["SW"] + j * c["DW"] - c["LEFT"]
                        if 0 <= to_y < ho and 0 <= to_x < wo:
                            cell, tap = m[:, y, z], weights[i, j]
                            want[:, to_y, to_x] += torch.einsum("rgo,goi->rgi", cell, tap)
                            size[:, to_y, to_x] += torch.einsum("rgo,goi->rgi", cell.abs(), tap.abs())
        if c["MASK"]:
            on = self._on_image(ho, wo, "TO_")
            want, size = (torch.where(on[:, :, :, None, None], v, 0.0) for v in (want, size))
        taps = (-(-kh // c["SH"]) if c["DH"] == 1 else kh) * (-(-kw // c["SW"]) if c["DW"] == 1 else kw)
        flat = ho * wo * ci
        yield self._product(want.reshape(self.n, flat), size.reshape(self.n, flat), self.result(flat), taps * co // g)

    def _on_image(self, height: int, width: int, prefix: str) -> Tensor:
        c = self.c
        y, x = (torch.arange(k, device=self.row("row_h").device) for k in (height, width))
        on_y = (self.row("row_h") * c[f"{prefix}RH"] - c[f"{prefix}OH"])[:, None] + y
        on_x = (self.row("row_w") * c[f"{prefix}RW"] - c[f"{prefix}OW"])[:, None] + x
        return ((on_y >= 0) & (on_y < c["IH"]))[:, :, None] & ((on_x >= 0) & (on_x < c["IW"]))[:, None]

    def slope_rows(self) -> Found:
        size, line = self.c["SIZE"], self.c["LINE"]
        x = self.rows(size)
        low, high, lift = (self.read(t, size, line) for t in ("below", "above", "cut"))
        terms = torch.where(x >= 0, 0.0, x.double() * lift.double())
        if self.c["LOWER"]:
            terms = terms + torch.where(x > 0, x.double() * self.read("lower", size, line).double(), 0.0)
        pending = self._pending(x, size, line, "floor")
        yield from self._judge(terms.sum(1) * self.c["SUM_ERROR"], terms.abs().sum(1), pending, size)
        want = (x * torch.where(x < 0, high, low)).double()
        yield "rows", fraction(self.result(size), want, torch.zeros_like(want))

    def _pending(self, x: Tensor, size: int, line: int, floor: str) -> Tensor:
        """What is paid for coefficients that a nonlinear operator multiplied."""
        if not self.c["PENDING"]:
            return torch.zeros(self.n, dtype=torch.float64, device=x.device)
        lo, hi = (self.read(t, size, line).double() for t in ("lo", "hi"))
        reach = torch.maximum(lo.abs(), hi.abs())
        return self.c["PENDING"] * (x.double().abs() * reach).sum(1) + self.was[f"{floor}_ptr"][self.row("image")]

    def scale_rows(self) -> Found:
        size, line, image = self.c["SIZE"], self.c["LINE"], self.row("image")
        x, t = self.rows(size), self.read("t", size, line)
        first = Oracle(self.c, {**self.was, "image_ptr": torch.zeros_like(image)}, self.now, self.n, self.coefficients)
        factor, shift = first.read("factor", size, line), first.read("shift", size, line)
        fixed = x.double() * shift
        charge = (x.double().abs() * t.double()).sum(1) * self.c["SUM_ERROR"] + self.was["floor_ptr"][image]
        yield from self._judge(fixed.sum(1), fixed.abs().sum(1), charge, size)
        want = (x * factor).double()
        yield "rows", fraction(self.result(size), want, torch.zeros_like(want))

    def pool_rows(self) -> Found:
        c = self.c
        h, w, ch, ho, wo = (c[k] for k in ("H", "W", "C", "HO", "WO"))
        size, line = h * w * ch, w * ch
        x, code = self.rows(size), self.read("winner", size, line)
        most, largest = (self.read(t, size, line).double() for t in ("most", "largest"))
        goes = (x > 0) | (code % 2 == 1)
        fixed, reach = torch.where(goes, 0.0, x.double()) * most, (x.double().abs() * largest).sum(1)
        charge = (c["REL"] * reach + self.was["floor_ptr"][self.row("image")]) * c["SUM_ERROR"]
        yield from self._judge(fixed.sum(1), reach, charge + self._pending(x, size, line, "own_floor"), size)
        tap = (code // 2 - 1).view(self.n, h, w, ch)
        y, z = (torch.arange(k, device=x.device) for k in (h, w))
        to_y = y[:, None, None] * c["SH"] + tap // c["KW"] * c["DH"] - c["TOP"]
        to_x = z[:, None] * c["SW"] + tap % c["KW"] * c["DW"] - c["LEFT"]
        on = goes.view_as(tap) & (tap >= 0) & (to_y >= 0) & (to_y < ho) & (to_x >= 0) & (to_x < wo)
        at = torch.where(on, (to_y * wo + to_x) * ch + torch.arange(ch, device=x.device), ho * wo * ch).view(self.n, size)
        want, total = (torch.zeros(self.n, ho * wo * ch + 1, dtype=torch.float64, device=x.device) for _ in range(2))
        want.scatter_add_(1, at, x.double())
        total.scatter_add_(1, at, x.double().abs())
        yield "rows", fraction(self.result(ho * wo * ch), want[:, :-1], gamma(c["KH"] * c["KW"], self.coefficients.u) * total[:, :-1])

    def part_rows(self) -> Found:
        c = self.c
        runs = self.rows(c["FROM"]).view(self.n, -1, c["OUTER"])[:, :, c["BEGIN"] : c["BEGIN"] + c["INNER"]]
        want = runs.reshape(self.n, c["SIZE"]).double()
        yield "rows", fraction(self.result(c["SIZE"]), want, torch.zeros_like(want))

    def gather_rows(self) -> Found:
        c = self.c
        x = self.rows(c["FROM"]).double().view(self.n, -1, c["CO"])
        want, total = (torch.zeros(self.n, x.shape[1], c["CI"], dtype=torch.float64, device=x.device) for _ in range(2))
        starts, readers = self.was["starts_ptr"], self.was["readers_ptr"]
        for s in range(c["CI"]):
            mine = x[:, :, readers[starts[s] : starts[s + 1]]]
            want[:, :, s], total[:, :, s] = mine.sum(2), mine.abs().sum(2)
        room = gamma(c["REPEATS"], self.coefficients.u) * total.view(self.n, -1)
        yield "rows", fraction(self.result(c["SIZE"]), want.view(self.n, -1), room)

    def concretize_rows(self) -> Found:
        c = self.c
        x = self.rows(c["SIZE"]).double()
        lo, hi = (self.read(t, c["SIZE"], c["LINE"]).double() for t in ("lo", "hi"))
        least, size = (x * torch.where(x < 0, hi, lo)).sum(1), (x.abs() * torch.maximum(lo.abs(), hi.abs())).sum(1)
        slack = c["REL"] * size + self.was["floor_ptr"][self.row("image")]
        constant, error = self.row("constant"), self.row("error")
        value = (constant - error if c["FIRST"] else self.row("value")) + least
        slack = slack if c["FIRST"] else self.row("slack") + slack
        own = (dot_error(c["SIZE"]) + 16 * U64) * size + 16 * U64 * (value.abs() + constant.abs() + error)
        if not c["LAST"]:
            yield "value", fraction(self.now["value_ptr"][: self.n], value, own)
            yield "slack", fraction(self.now["slack_ptr"][: self.n], slack, 2 * dot_error(c["SIZE"]) * slack + 16 * U64 * slack)
            return
        index = self.row("index")
        got = self.now["best_ptr"][index]
        better = got > self.was["best_ptr"][index]
        top = self.was["best_ptr"][index]
        low = value - slack - (64 + 32 * c["NODES"]) * U64 * (2 * value.abs() + 3 * error + slack + 2 * constant.abs()) - own - TINY
        yield "bound", float("inf") if bool((got < torch.maximum(top, low)).any()) else 0.0  # no looser than it says
        gap = torch.where(better, value + own - got, torch.zeros_like(got))  # and never above the least value
        yield "sound", float("inf") if bool((gap < 0).any()) or bool(got.isnan().any()) else 0.0

    def join_rows(self) -> Found:
        c = self.c
        ho, wo, ch = c["HO"], c["WO"], c["C"]
        a = self._move("a", ho, wo)
        want = a
        if c["SECOND"]:
            b = self._move("b", ho, wo)
            want = a + b
            lo, hi = (self.read(t, ho * wo * ch, wo * ch).double() for t in ("lo", "hi"))
            reach = torch.maximum(lo.abs(), hi.abs())
            parts = ((c["A_REL"], a), (c["B_REL"], b), (c["OUT_REL"], want))
            floor = self.was["floor_ptr"][self.row("image")]
            charge = sum(((rel * (v.double().abs() * reach).sum(1) + floor) for rel, v in parts if rel > 0), torch.zeros_like(floor))
            yield from self._judge(torch.zeros_like(charge), torch.zeros_like(charge), charge, ho * wo * ch)
        yield "rows", fraction(self.result(ho * wo * ch), want.double(), torch.zeros_like(want, dtype=torch.float64))

    def _move(self, name: str, ho: int, wo: int) -> Tensor:
        """One part on the new windows, with its sign."""
        c, p = self.c, name.upper()
        h, w, ch = c[f"{p}H"], c[f"{p}W"], c["C"]
        part = self.rows(h * w * ch, name, f"{name}_slot").view(self.n, h * w, ch)
        y = torch.arange(ho, device=part.device) - (self.row("row_h") * (c[f"{p}_RH"] - c["RH"]))[:, None] + c[f"{p}_OH"] - c["OH"]
        x = torch.arange(wo, device=part.device) - (self.row("row_w") * (c[f"{p}_RW"] - c["RW"]))[:, None] + c[f"{p}_OW"] - c["OW"]
        on = ((y >= 0) & (y < h))[:, :, None] & ((x >= 0) & (x < w))[:, None]
        at = (y.clamp(0, h - 1)[:, :, None] * w + x.clamp(0, w - 1)[:, None]).view(self.n, ho * wo)
        got = part.gather(1, at[:, :, None].expand(-1, -1, ch)) * on.view(self.n, ho * wo, 1) * c[f"{p}_SIGN"]
        return got.reshape(self.n, ho * wo * ch)

    def start_rows(self) -> Found:
        c = self.c
        sign, channel = self.row("sign"), self.row("channel")
        ho, wo, ci = c["HO"], c["WO"], c["CI"]
        if c["SLICE"]:
            rows = self.was["w_ptr"].reshape(-1, c["NH"], c["NW"], ci)
            pad = rows.new_zeros(len(rows), c["NH"] + 1, c["NW"] + 1, ci)  # one line and one cell of zeros for what lies outside
            pad[:, : c["NH"], : c["NW"]] = rows
            y = torch.arange(ho, device=sign.device) - (self.row("row_h") * c["GAP_RH"])[:, None] - c["GAP_H"]
            x = torch.arange(wo, device=sign.device) - (self.row("row_w") * c["GAP_RW"])[:, None] - c["GAP_W"]
            y, x = torch.where((y < 0) | (y > c["NH"]), c["NH"], y), torch.where((x < 0) | (x > c["NW"]), c["NW"], x)
            want = pad[channel[:, None, None], y[:, :, None], x[:, None]].double() * sign[:, None, None, None]
            if c["MASK"]:
                want = want * self._on_image(ho, wo, "")[..., None]
        else:
            want = torch.zeros(self.n, ho * wo * ci, dtype=torch.float64, device=sign.device)
            want[torch.arange(self.n, device=sign.device), channel] = sign
        want = want.reshape(self.n, -1)
        yield "rows", fraction(self.result(ho * wo * ci), want, torch.zeros_like(want))
        if c["CHARGE"]:
            yield from self.pay_neurons()

    def pay_neurons(self) -> Found:
        c = self.c
        channel = self.row("channel")
        zero = torch.zeros(self.n, dtype=torch.float64, device=channel.device)
        more = zero
        if c["BIAS"] != "none":
            more = self.row("sign") * self.was["bias_ptr"].reshape(-1)[channel]
        at = ((self.row("image") * c["H"] + self.row("row_h")) * c["W"] + self.row("row_w")) * c["C"] + channel
        yield from self._judge(more, more.abs(), self.was["first_ptr"].reshape(-1)[at], 1)

    # ---- compaction: exact ------------------------------------------------------------------------------

    def _find_staying(self) -> Tensor:
        return self.was["done_ptr"][self.was["group_ptr"][self.row("index")]] == 0

    def count_staying(self) -> Found:
        stays, size = self._find_staying().long(), self.c["B"]
        want = torch.stack([part.sum() for part in stays.split(size)])
        yield "counts", 0.0 if torch.equal(self.now["blocks_ptr"][: len(want)], want) else float("inf")

    def move_rows(self) -> Found:
        stays = torch.nonzero(self._find_staying()).flatten()
        k = len(stays)
        same = int(self.now["to_count_ptr"][0]) == k and torch.equal(self.now["from_ptr"][:k], stays)
        for name in ("image", "row_h", "row_w", "constant", "error", "index", "sign", "channel"):
            if f"to_{name}_ptr" in self.now:
                same = same and torch.equal(self.now[f"to_{name}_ptr"][:k], self.row(name)[stays])
        yield "rows", 0.0 if same else float("inf")

    def follow_slots(self) -> Found:
        same = torch.equal(self.now["to_slot_ptr"][: self.n], self.was["slot_ptr"][self.was["from_ptr"][: self.n]])
        yield "slots", 0.0 if same else float("inf")
