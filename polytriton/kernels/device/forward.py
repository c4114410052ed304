"""The affine layers of the interval pass: centre, spread and magnitude of an image of boxes, and who took part, in one kernel each.

An operand box [lo, hi] is held by any point mid of it and a radius rad that reaches both ends from there:

    mid = 0.5 lo + 0.5 hi,   rad = GROW max(hi - mid, mid - lo) >= |x - mid|,   xabs = |mid| + rad

and y = W x + b then obeys |y - (W mid + b)| <= |W| rad, in exact arithmetic on the stored mid and rad. The kernels store

    centre = W mid + b,   spread = GROW A rad,   magnitude = GROW wabs xabs     (A = |W|; wabs = |W| unless CANCELLED)

Bound. An output sums K products, K = `Layer.terms`; the kernels add them block by block on one float64 accumulator that starts
at zero, and the bias last. Lanes past K and cells off the image are products of exact zeros, and adding a zero rounds nothing
(nor does the first addition, to the zero start). So a product takes part in at most K + 1 roundings: its own (none where it is
fused), K - 1 additions in whatever order and shape of tree the tensor core and the tiles choose, the bias. runtime.forward
charges gamma64_(K+4) (magnitude + |b|) and covers underflow by a constant. The terms of spread and magnitude have one sign:
GROW covers those roundings for any K up to half a million, which is what rounding.GROW promises and layers.WIDEST limits.
Fusing |mid| + rad with the product that makes rad leaves one rounding out of xabs, which GROW covers on magnitude as well.

A NaN or an infinity in [lo, hi] makes the magnitude of every output that reads it NaN or infinite: no bound.

FORM "ieee" or one of a split product (products.multiply) in place of "": not boxes but points, `lo` of type T, go through the layer
to `out`, one product where boxes need three. Nothing is claimed of their roundings: they are for the ascent (ascent.py).

TERMS counts the operands an output sums: "present" those with xabs > 0, "none" counts nothing. The count
is of a group's channels together, an exact small integer whatever the order. Without FORM all tensors are float64 but count_ptr: the
images.
"""

# mypy: disable-error-code="no-untyped-def"
from dataclasses import dataclass

import triton
import triton.language as tl

from polytriton.kernels.device.constants import Taps
from polytriton.kernels.device.products import multiply

GROW = tl.constexpr(1 + 2.0**-34)  # rounding.GROW


@triton.jit
def centred(lo, hi):
    """mid, rad and xabs of boxes; NaN where either difference is NaN."""
    mid = 0.5 * lo + 0.5 * hi
    over = hi - mid
    under = mid - lo
    rad = tl.where((over > under) | (over != over), over, under) * GROW
    return mid, rad, tl.abs(mid) + rad


@triton.jit
def forward_dense(
    lo_ptr, hi_ptr, w_ptr, wabs_ptr, bias_ptr, centre_ptr, spread_ptr, magnitude_ptr, terms_ptr, out_ptr, count_ptr,
    T: tl.constexpr, FORM: tl.constexpr, K: tl.constexpr, N: tl.constexpr, CANCELLED: tl.constexpr, TERMS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Boxes or points [images, K] through w [N, K]; terms [images]. Grid: (blocks of BM images, tiles of BN outputs)."""
    count = tl.load(count_ptr)
    if FORM != "":
        if tl.program_id(0) * BM >= count:
            return
    image = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    live = image < count
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    centre = tl.full((BM, BN), 0.0, tl.float64)
    spread = tl.full((BM, BN), 0.0, tl.float64)
    magnitude = tl.full((BM, BN), 0.0, tl.float64)
    seen = tl.full((BM, BK), 0, tl.int32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        inside = live[:, None] & (k < K)[None, :]
        at = (image * K)[:, None] + k[None, :]
        lo = tl.load(lo_ptr + at, mask=inside, other=0.0)
        if FORM == "":
            hi = tl.load(hi_ptr + at, mask=inside, other=0.0)
            mid, rad, xabs = centred(lo, hi)
            if TERMS == "present":
                seen += (xabs > 0).to(tl.int32)
        at_w = (n.to(tl.int64) * K)[None, :] + k[:, None]
        there = (k < K)[:, None] & (n < N)[None, :]
        w = tl.load(w_ptr + at_w, mask=there, other=0.0)
        if FORM != "":
            centre = multiply(lo, w, centre, T, FORM)
        else:
            centre = tl.dot(mid, w, centre, out_dtype=tl.float64)
            w = tl.abs(w)
            spread = tl.dot(rad, w, spread, out_dtype=tl.float64)
            if CANCELLED:
                w = tl.load(wabs_ptr + at_w, mask=there, other=0.0)
            magnitude = tl.dot(xabs, w, magnitude, out_dtype=tl.float64)
    centre += tl.load(bias_ptr + n, mask=n < N, other=0.0)[None, :]
    to = (image * N)[:, None] + n[None, :]
    inside = live[:, None] & (n < N)[None, :]
    if FORM != "":
        tl.store(out_ptr + to, centre.to(T), mask=inside)
    else:
        tl.store(centre_ptr + to, centre, mask=inside)
        tl.store(spread_ptr + to, spread * GROW, mask=inside)
        tl.store(magnitude_ptr + to, magnitude * GROW, mask=inside)
    if TERMS != "none":
        if tl.program_id(1) == 0:
            tl.store(terms_ptr + image, tl.sum(seen, 1).to(tl.float64), mask=live)


@dataclass(frozen=True)
class ForwardConv(Taps):
    """From [H, W, C] to [HO, WO, CO] in G groups."""

    H: int
    W: int
    C: int
    HO: int
    WO: int
    CO: int
    G: int
    T: tl.dtype
    FORM: str
    CANCELLED: bool
    TERMS: str
    BM: int
    BN: int
    BK: int


@triton.jit
def forward_conv(
    lo_ptr, hi_ptr, w_ptr, wabs_ptr, bias_ptr, centre_ptr, spread_ptr, magnitude_ptr, terms_ptr, out_ptr, count_ptr, c: tl.constexpr,
):  # fmt: skip
    """Boxes or points [images, H, W, C] through w [CO, KH, KW, C/G] become [images, HO, WO, CO]; terms [images, HO, WO, G].

    An implicit matrix product: output cell (y, x) reads at tap (i, j) the cell (y SH + i DH - TOP, x SW + j DW - LEFT), zero where
    that is off the image. The reduction runs over (tap, input channel) as one index, so any number of channels fills its blocks.
    Padding may be negative: it moves the origin only. Grid: (blocks of BM (image, cell) pairs, column tiles of all groups).
    """
    COG: tl.constexpr = c.CO // c.G
    CIG: tl.constexpr = c.C // c.G
    NT: tl.constexpr = (COG + c.BN - 1) // c.BN
    K: tl.constexpr = c.KH * c.KW * CIG
    count = tl.load(count_ptr)
    if c.FORM != "":
        if tl.program_id(0) * c.BM >= count * (c.HO * c.WO):
            return
    pair = tl.program_id(0).to(tl.int64) * c.BM + tl.arange(0, c.BM)
    image = pair // (c.HO * c.WO)
    cell = (pair % (c.HO * c.WO)).to(tl.int32)
    live = image < count
    first_y = cell // c.WO * c.SH - c.TOP
    first_x = cell % c.WO * c.SW - c.LEFT
    group = tl.program_id(1) // NT
    lo_image = lo_ptr + image * (c.H * c.W * c.C) + group * CIG
    if c.FORM == "":
        hi_image = hi_ptr + image * (c.H * c.W * c.C) + group * CIG
    n = tl.program_id(1) % NT * c.BN + tl.arange(0, c.BN)
    at_n = (group * COG + n) * K
    centre = tl.full((c.BM, c.BN), 0.0, tl.float64)
    spread = tl.full((c.BM, c.BN), 0.0, tl.float64)
    magnitude = tl.full((c.BM, c.BN), 0.0, tl.float64)
    seen = tl.full((c.BM, c.BK), 0, tl.int32)
    for k0 in range(0, K, c.BK):
        k = k0 + tl.arange(0, c.BK)
        tap = k // CIG
        y = first_y[:, None] + (tap // c.KW * c.DH)[None, :]
        x = first_x[:, None] + (tap % c.KW * c.DW)[None, :]
        inside = live[:, None] & (k < K)[None, :] & (y >= 0) & (y < c.H) & (x >= 0) & (x < c.W)
        at = (y * c.W + x) * c.C + (k % CIG)[None, :]
        lo = tl.load(lo_image[:, None] + at, mask=inside, other=0.0)
        if c.FORM == "":
            hi = tl.load(hi_image[:, None] + at, mask=inside, other=0.0)
            mid, rad, xabs = centred(lo, hi)
            if c.TERMS == "present":
                seen += (xabs > 0).to(tl.int32)
        at_w = at_n[None, :] + k[:, None]
        there = (k < K)[:, None] & (n < COG)[None, :]
        w = tl.load(w_ptr + at_w, mask=there, other=0.0)
        if c.FORM != "":
            centre = multiply(lo, w, centre, c.T, c.FORM)
        else:
            centre = tl.dot(mid, w, centre, out_dtype=tl.float64)
            w = tl.abs(w)
            spread = tl.dot(rad, w, spread, out_dtype=tl.float64)
            if c.CANCELLED:
                w = tl.load(wabs_ptr + at_w, mask=there, other=0.0)
            magnitude = tl.dot(xabs, w, magnitude, out_dtype=tl.float64)
    centre += tl.load(bias_ptr + group * COG + n, mask=n < COG, other=0.0)[None, :]
    to = (pair * c.CO)[:, None] + (group * COG + n)[None, :]
    inside = live[:, None] & (n < COG)[None, :]
    if c.FORM != "":
        tl.store(out_ptr + to, centre.to(c.T), mask=inside)
    else:
        tl.store(centre_ptr + to, centre, mask=inside)
        tl.store(spread_ptr + to, spread * GROW, mask=inside)
        tl.store(magnitude_ptr + to, magnitude * GROW, mask=inside)
    if c.TERMS != "none":
        if tl.program_id(1) % NT == 0:
            tl.store(terms_ptr + pair * c.G + group, tl.sum(seen, 1).to(tl.float64), mask=live)
