"""Rows that are one neuron, +x or -x: their first affine layer is a slice of its weights, no product."""

from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import MovingWindow
from polytriton.kernels.device.numerics import pay, position


@triton.jit
def charge_neurons(
    sign_ptr, channel_ptr, image_ptr, row_h_ptr, row_w_ptr, bias_ptr, first_ptr, constant_ptr, error_ptr, rows, live,
    BIAS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """constant += sign * bias, error += first: what substituting the neuron itself costs, its coefficients being exact."""
    sign = tl.load(sign_ptr + rows, mask=live, other=0.0).to(tl.float64)
    channel = tl.load(channel_ptr + rows, mask=live, other=0)
    image = tl.load(image_ptr + rows, mask=live, other=0)
    row_h = tl.load(row_h_ptr + rows, mask=live, other=0)
    row_w = tl.load(row_w_ptr + rows, mask=live, other=0)
    more = sign * 0.0
    if BIAS == "line":
        more = sign * tl.load(bias_ptr + channel, mask=live, other=0.0)
    if BIAS == "image":
        more = sign * tl.load(bias_ptr + (row_h * W + row_w) * C + channel, mask=live, other=0.0)
    charge = tl.load(first_ptr + ((image * H + row_h) * W + row_w) * C + channel, mask=live, other=0.0)
    constant = tl.load(constant_ptr + rows, mask=live, other=0.0)
    error = tl.load(error_ptr + rows, mask=live, other=0.0)
    constant, error = pay(constant, error, more, charge)
    tl.store(constant_ptr + rows, constant, mask=live)
    tl.store(error_ptr + rows, error, mask=live)


@dataclass(frozen=True)
class StartRows(MovingWindow):
    T: tl.dtype
    CHARGE: bool
    SLICE: bool
    BIAS: str
    H: int
    W: int
    C: int
    NH: int
    NW: int
    CI: int
    HO: int
    WO: int
    GAP_RH: int
    GAP_H: int
    GAP_RW: int
    GAP_W: int
    MASK: bool
    IH: int
    IW: int
    BR: int
    BQ: int


@triton.jit
def start_rows(
    sign_ptr, channel_ptr, image_ptr, row_h_ptr, row_w_ptr, bias_ptr, first_ptr, constant_ptr, error_ptr, w_ptr, out_ptr, count_ptr,
    c: tl.constexpr,
):  # fmt: skip
    """SLICE: row r gets sign[r] * w[channel[r]], weights [C, NH, NW, CI] as the layer spreads them over its input, laid onto the
    window [HO, WO]: cell y of the window is cell y - row_h GAP_RH - GAP_H of the weights. A product with +-1 is exact.
    Otherwise the row is written out on its own node: sign[r] at channel[r] of CI. MASK: cells off the image IH x IW get zero.
    """
    count = tl.load(count_ptr)
    first = tl.program_id(0) * c.BR
    if first >= count:
        return
    rows = first + tl.arange(0, c.BR)
    live = rows < count
    if c.CHARGE and tl.program_id(1) == 0:
        charge_neurons(
            sign_ptr, channel_ptr, image_ptr, row_h_ptr, row_w_ptr, bias_ptr, first_ptr, constant_ptr, error_ptr, rows, live,
            c.BIAS, c.H, c.W, c.C,
        )  # fmt: skip
    sign = tl.load(sign_ptr + rows, mask=live, other=0.0).to(c.T)
    channel = tl.load(channel_ptr + rows, mask=live, other=0)
    SIZE: tl.constexpr = c.HO * c.WO * c.CI
    q = tl.program_id(1) * c.BQ + tl.arange(0, c.BQ)
    inside = live[:, None] & (q < SIZE)[None, :]
    if c.SLICE:
        row_h = position(row_h_ptr, rows, live, c.GAP_RH != 0 or (c.MASK and c.RH != 0))
        row_w = position(row_w_ptr, rows, live, c.GAP_RW != 0 or (c.MASK and c.RW != 0))
        y = (q // (c.WO * c.CI))[None, :] - (row_h * c.GAP_RH + c.GAP_H)[:, None]
        x = (q % (c.WO * c.CI) // c.CI)[None, :] - (row_w * c.GAP_RW + c.GAP_W)[:, None]
        on = inside & (y >= 0) & (y < c.NH) & (x >= 0) & (x < c.NW)
        if c.MASK:
            on_y = (row_h * c.RH - c.OH)[:, None] + (q // (c.WO * c.CI))[None, :]
            on_x = (row_w * c.RW - c.OW)[:, None] + (q % (c.WO * c.CI) // c.CI)[None, :]
            on = on & (on_y >= 0) & (on_y < c.IH) & (on_x >= 0) & (on_x < c.IW)
        at = channel[:, None] * (c.NH * c.NW * c.CI) + (y * c.NW + x) * c.CI + (q % c.CI)[None, :]
        out = tl.load(w_ptr + at, mask=on, other=0.0) * sign[:, None]
    else:
        out = tl.where(q[None, :] == channel[:, None], sign[:, None], 0.0)
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * SIZE + q[None, :], out.to(c.T), mask=inside)


@triton.jit
def pay_neurons(
    sign_ptr, channel_ptr, image_ptr, row_h_ptr, row_w_ptr, bias_ptr, first_ptr, constant_ptr, error_ptr, count_ptr,
    BIAS: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """charge_neurons on its own: the node substituted is a sum of others, so the rows stay single neurons."""
    count = tl.load(count_ptr)
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    charge_neurons(
        sign_ptr, channel_ptr, image_ptr, row_h_ptr, row_w_ptr, bias_ptr, first_ptr, constant_ptr, error_ptr, rows, rows < count,
        BIAS, H, W, C,
    )  # fmt: skip
