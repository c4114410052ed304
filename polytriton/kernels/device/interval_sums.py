"""The three sums of a product of coefficient intervals and weights: two of directed FMAs, one of whole steps on tensor cores.

m w over m in [lo, hi] lies between lo w and hi w, in the order that the sign of w decides. To choose ends costs two selects a
product, on a GPU as dear as the FMAs. With the part of w below zero, v = min(w, 0), and d = RU(hi - lo) no choice is left:

    m = lo + t,  0 <= t <= d:       m w = lo w + t w >= lo w + d v         (t w >= 0 where w >= 0, t w >= d w elsewhere)
    m = hi - s,  0 <= s <= d:       m w = hi w - s w <= hi w - d v

The term d v is the same on both sides. So the sums over k

    low = RD sum lo w,     high = RU sum hi w,     spread <= sum d v        give      [RD(low + spread), RU(high - spread)],

which holds sum m_k w_k for every choice of m_k in [lo_k, hi_k], whatever order the terms come in: every FMA of low and high is
rounded outward, from a sum that was outward already.

The spread needs no such care: its terms are all of one sign, and for the weights and roundings of a network d is small beside lo and
hi. Of BK terms at a time d and -v become whole numbers of steps (`steps_up`), d_k <= s q_k and -v_k <= t p_k, one step s a row and
one step t a column, so

    sum d_k v_k  >=  - s t sum q_k p_k        with q_k, p_k <= 127,

where the sum is of integers of 8 bits, exact in 32 bits for any order, which tensor cores make (int8 products are integers: nothing
is rounded, nothing assumed). It is below 2^24 for BK <= 1024 (`BLOCK`), so float32 holds it; s t is rounded up, and the FMA that adds
the block to the spread down. Powers of two for steps make the quotients d / s and -v / t exact. What it loses: s q_k < d_k + s, with s
at most a 63rd of the block's largest d; the same of v. Terms that are zero stay zero: of coefficients that are points the spread is 0.

Where hi - lo overflows, or all but does, or is NaN, s is infinite, as s t is where it overflows, and the spread -inf or NaN: q_k may
be 0 there. A spread that is NaN is taken for -inf: no bound. NaN in an end makes its sum NaN and the other end of the sum infinite,
NaN in a weight makes both sums NaN.
"""

# mypy: disable-error-code="no-untyped-def"
import triton
import triton.language as tl

from polytriton.kernels.device.directed import (
    add_down,
    add_down_emulated,
    add_up,
    add_up_emulated,
    fma_down,
    fma_down_emulated,
    fma_up,
    fma_up_emulated,
    mul_up,
    mul_up_emulated,
)

BLOCK = tl.constexpr(1024)  # terms of a block at most


@triton.jit
def leading_bits(x):
    """The top 32 bits of a number without its sign, as an integer: they order numbers; infinity is above all, NaN above infinity."""
    if x.dtype == tl.float32:
        return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    else:
        return (x.to(tl.int64, bitcast=True) >> 32).to(tl.int32) & 0x7FFFFFFF


@triton.jit
def power(exponent, T: tl.constexpr):
    """The number whose exponent's bits are these and whose others are zero."""
    if T == tl.float32:
        return (exponent << 23).to(tl.float32, bitcast=True)
    else:
        return (exponent.to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def steps_up(x, AXIS: tl.constexpr, INTERPRET: tl.constexpr):
    """Whole numbers q, 0 to 127, and steps s, powers of two, one along AXIS: x <= s q < x + s, q = 0 where x = 0, for x >= 0.

    2^e is the least power of two with x < (2 - 2^-6) 2^e for every x, but 2^7 times the least normal number at least, and
    s = 2^(e - 6). So x / s < 127, and s and its inverse are normal. x / s + 2^p, with p the bits of a mantissa, is rounded up: to a
    whole number, which stands in the mantissa's last bits. Of x whose 2^e is none, such as infinity and NaN, s is infinite and
    q any number to 127.
    """
    BITS: tl.constexpr = 23 if x.dtype == tl.float32 else 52
    LEFT: tl.constexpr = BITS % 32  # of them, in the leading bits
    TOP: tl.constexpr = 255 if x.dtype == tl.float32 else 2047  # the exponent's bits of what is no number
    most = tl.minimum(tl.max(leading_bits(x), AXIS, keep_dims=True), TOP << LEFT)
    e = tl.maximum((most + (1 << (LEFT - 6))) >> LEFT, 8)
    scale = tl.broadcast_to(power(TOP + 5 - e, x.dtype), x.shape)
    if INTERPRET:
        whole = fma_up_emulated(x, scale, tl.full(x.shape, 2**BITS, x.dtype))
    else:
        whole = fma_up(x, scale, tl.full(x.shape, 2**BITS, x.dtype))
    q = whole.to(tl.int32 if x.dtype == tl.float32 else tl.int64, bitcast=True) & 0x7F
    return q.to(tl.int8), power(tl.where(e == TOP, TOP, e - 6), x.dtype)


@triton.jit
def below_zero(w):
    """-min(w, 0), exactly: a number keeps its bits but the sign's, or loses them all, by its sign, which asks no unit for numbers.

    A NaN may become 0: it makes both sums of FMAs NaN.
    """
    if w.dtype == tl.float32:
        bits = w.to(tl.int32, bitcast=True)
        return (bits & (bits >> 31) & 0x7FFFFFFF).to(tl.float32, bitcast=True)
    else:
        bits = w.to(tl.int64, bitcast=True)
        return (bits & (bits >> 63) & 0x7FFFFFFFFFFFFFFF).to(tl.float64, bitcast=True)


@triton.jit
def width_up(lo, hi, INTERPRET: tl.constexpr):
    """The least float not below hi - lo."""
    if INTERPRET:
        return add_up_emulated(hi, -1.0 * lo)
    elif lo.dtype == tl.float32:
        return tl.inline_asm_elementwise("sub.rp.f32 $0, $1, $2;", "=f,f,f", [hi, lo], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("sub.rp.f64 $0, $1, $2;", "=d,d,d", [hi, lo], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def load_known(ptr, known, MASKED: tl.constexpr):
    """What is known of a tile, and 0 elsewhere."""
    if MASKED:
        return tl.load(ptr, mask=known, other=0.0)
    else:
        return tl.load(ptr)


@triton.jit
def add_spread(lo_ptr, hi_ptr, w_ptr, known, terms, spread, MASKED: tl.constexpr, INTERPRET: tl.constexpr):
    """spread + d v for the ends' widths d [BM, BK] and the weights' parts v below zero [BK, BN], rounded down in whole steps.

    MASKED: others than `known` ends, and than weights of `terms`, are zero. The barrier keeps loads of ends from being made, and kept
    in registers, before the weights are steps.
    """
    w = load_known(w_ptr, terms, MASKED)
    p, t = steps_up(below_zero(w), 0, INTERPRET)
    tl.debug_barrier()
    lo = load_known(lo_ptr, known, MASKED)
    hi = load_known(hi_ptr, known, MASKED)
    tl.static_assert(lo.shape[1] <= BLOCK, "a block's sum of whole numbers must be exact in float32")
    q, s = steps_up(width_up(lo, hi, INTERPRET), 1, INTERPRET)
    steps = -1.0 * tl.dot(q, p, out_dtype=tl.int32).to(spread.dtype)
    s = tl.broadcast_to(s, spread.shape)
    t = tl.broadcast_to(t, spread.shape)
    if INTERPRET:
        return fma_down_emulated(steps, mul_up_emulated(s, t), spread)
    else:
        return fma_down(steps, mul_up(s, t), spread)


@triton.jit
def add_term(lo, hi, w, low, high, INTERPRET: tl.constexpr):
    """One term more in both sums. Up is down of the negated: the emulation does two in one go."""
    if INTERPRET:
        wide = tl.broadcast_to(w, low.shape)
        ends = tl.join(tl.broadcast_to(lo, low.shape), tl.broadcast_to(-1.0 * hi, low.shape))
        low, high = tl.split(fma_down_emulated(ends, tl.join(wide, wide), tl.join(low, -1.0 * high)))
        return low, -1.0 * high
    else:
        return fma_down(lo, w, low), fma_up(hi, w, high)


@triton.jit
def ends_of_sums(low, high, spread, INTERPRET: tl.constexpr):
    """The interval that three sums make; `spread` is [BM, BN]."""
    RM: tl.constexpr = low.shape[0]
    RN: tl.constexpr = low.shape[1]
    spread = tl.permute(tl.reshape(spread, (RM, low.shape[2], RN, low.shape[3])), (0, 2, 1, 3))
    spread = tl.where(spread == spread, spread, float("-inf"))
    if INTERPRET:
        return add_down_emulated(low, spread), add_up_emulated(high, -1.0 * spread)
    else:
        return add_down(low, spread), add_up(high, -1.0 * spread)
