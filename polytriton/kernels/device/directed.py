"""Directed rounding for Triton kernels: a*b + c, a + b and a*b rounded down (towards -inf) or up, float32 and float64.

On a GPU one PTX instruction each: `.rm` rounds down, `.rp` up, and no `.ftz`, so subnormals are kept (libdevice's fma_rd is
`fma.rm.ftz.f32`: it flushes after the directed rounding was promised). Triton's interpreter cannot run PTX; there the
`*_emulated` functions give the same bits for every operand: subnormals, overflow (a finite sum rounded down is at most the
largest finite number), infinities, signs of zeros; only a NaN's payload is open. A kernel picks by its constexpr INTERPRET.

Emulation: the exact result is brought to the form r + d, r a float64 next to it and d of the sign of what is missing; then
r is converted to the result's format and moved one number down where the conversion, or d, left it above the exact value.
Up is down of the negated: RU(x) = -RD(-x). The error-free steps assume one rounding an operation, as the interpreter does
it; compiled code may contract them, so the emulation is for the interpreter only.
"""

# mypy: disable-error-code="no-untyped-def"
import triton
import triton.language as tl


@triton.jit
def fma_down(a, b, c):
    """The greatest float not above a*b + c."""
    if a.dtype == tl.float32:
        return tl.inline_asm_elementwise("fma.rm.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("fma.rm.f64 $0, $1, $2, $3;", "=d,d,d,d", [a, b, c], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def fma_up(a, b, c):
    """The least float not below a*b + c."""
    if a.dtype == tl.float32:
        return tl.inline_asm_elementwise("fma.rp.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("fma.rp.f64 $0, $1, $2, $3;", "=d,d,d,d", [a, b, c], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def add_down(a, b):
    """The greatest float not above a + b."""
    if a.dtype == tl.float32:
        return tl.inline_asm_elementwise("add.rm.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("add.rm.f64 $0, $1, $2;", "=d,d,d", [a, b], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def add_up(a, b):
    """The least float not below a + b."""
    if a.dtype == tl.float32:
        return tl.inline_asm_elementwise("add.rp.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("add.rp.f64 $0, $1, $2;", "=d,d,d", [a, b], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def mul_down(a, b):
    """The greatest float not above a*b."""
    if a.dtype == tl.float32:
        return tl.inline_asm_elementwise("mul.rm.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("mul.rm.f64 $0, $1, $2;", "=d,d,d", [a, b], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def mul_up(a, b):
    """The least float not below a*b."""
    if a.dtype == tl.float32:
        return tl.inline_asm_elementwise("mul.rp.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=tl.float32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("mul.rp.f64 $0, $1, $2;", "=d,d,d", [a, b], dtype=tl.float64, is_pure=True, pack=1)


@triton.jit
def sum_and_error(a, b):
    """s = RN(a + b) and e = a + b - s, exactly (Knuth); a + b must not overflow."""
    s = a + b
    part = s - a
    return s, (a - (s - part)) + (b - part)


@triton.jit
def halves(x):
    """x = high + low, 26 bits each (Veltkamp): products of halves are exact."""
    t = 134217729.0 * x
    high = t - (t - x)
    return high, x - high


@triton.jit
def mantissa_and_exponent(x):
    """x = m * 2**e with 1 <= |m| < 2, for every finite x but zero, which has m = x and an exponent below all others."""
    small = tl.abs(x) < 2.2250738585072014e-308
    normal = tl.where(small, x * 18446744073709551616.0, x)
    bits = normal.to(tl.int64, bitcast=True)
    e = ((bits >> 52) & 0x7FF) - 1023
    m = (bits - (e << 52)).to(tl.float64, bitcast=True)
    return tl.where(x == 0.0, x, m), tl.where(x == 0.0, -8192, tl.where(small, e - 64, e))


@triton.jit
def power_of_two(e):
    """2**e as float64, -1022 <= e <= 1023."""
    return ((e + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def next_below_32(x):
    """The greatest float32 below x, for x above -inf."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(x > 0.0, bits - 1, tl.where(x < 0.0, bits + 1, -2147483647))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def next_below_64(x):
    """The greatest float64 below x, for x above -inf."""
    bits = x.to(tl.int64, bitcast=True)
    bits = tl.where(x > 0.0, bits - 1, tl.where(x < 0.0, bits + 1, -9223372036854775807))
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def fma_down_32(a, b, c):
    """float32 a*b + c rounded down: the product is exact in float64, the sum is r + d; infinities and NaN go through r."""
    r, d = sum_and_error(a.to(tl.float64) * b.to(tl.float64), c.to(tl.float64))
    y = r.to(tl.float32)
    above = (y.to(tl.float64) > r) | ((y.to(tl.float64) == r) & (d < 0.0))
    y = tl.where(above, next_below_32(y), y)
    # an exact zero is -0 when rounding down, unless both addends are +0 (the literal -0.0 is +0 to Triton)
    sign = (a.to(tl.int32, bitcast=True) ^ b.to(tl.int32, bitcast=True)) | c.to(tl.int32, bitcast=True)
    return tl.where(r == 0.0, (sign & -2147483648).to(tl.float32, bitcast=True), y)


@triton.jit
def fma_down_64(a, b, c):
    """float64 a*b + c rounded down, exactly, over the whole range of exponents.

    With mantissas ma, mb, mc the value is (ma*mb + mc*2**shift) * 2**e. ma*mb = high + low without error (Dekker). A shift
    beyond 110 either way is cut to 110: the smaller addend is then below every bit of the larger one and of any rounding
    boundary near it, so only its sign counts. Three exact sums leave r + d + (less than d); scaling r back rounds at most
    once (where the result is subnormal or overflows), and scaling the result forth again says to which side.
    """
    ma, ea = mantissa_and_exponent(a)
    mb, eb = mantissa_and_exponent(b)
    mc, ec = mantissa_and_exponent(c)
    shift = tl.minimum(tl.maximum(ec - (ea + eb), -110), 110)
    e = tl.maximum(ea + eb, ec - 110)
    a1, a0 = halves(ma)
    b1, b0 = halves(mb)
    high = ma * mb
    low = (((a1 * b1 - high) + a1 * b0) + a0 * b1) + a0 * b0
    s, s_error = sum_and_error(high, mc * power_of_two(shift))
    t, t_error = sum_and_error(s_error, low)
    r, r_error = sum_and_error(s, t)
    d = tl.where(r_error != 0.0, r_error, t_error)
    e = tl.minimum(tl.maximum(e, -1400), 1300)  # 2**-162 <= |r| < 2**112 or r = 0: beyond these the result is 0 or overflows all the same
    first = e >> 1
    y = (r * power_of_two(first)) * power_of_two(e - first)
    back = (y * power_of_two(first - e)) * power_of_two(-first)
    above = (back > r) | ((back == r) & (d < 0.0))
    y = tl.where(above, next_below_64(y), y)
    sign = (a.to(tl.int64, bitcast=True) ^ b.to(tl.int64, bitcast=True)) | c.to(tl.int64, bitcast=True)
    y = tl.where(r == 0.0, (sign & -9223372036854775808).to(tl.float64, bitcast=True), y)
    finite = (a - a == 0.0) & (b - b == 0.0)
    # finite a*b may overflow where it is not rounded, so it stays out of a sum with an infinite c
    return tl.where(finite & (c - c == 0.0), y, tl.where(finite, c, a * b + c))


@triton.jit
def fma_down_emulated(a, b, c):
    """`fma_down` without PTX."""
    if a.dtype == tl.float32:
        return fma_down_32(a, b, c)
    else:
        return fma_down_64(a, b, c)


@triton.jit
def fma_up_emulated(a, b, c):
    """`fma_up` without PTX. Negation by -1.0 keeps the sign of a zero (Triton's unary minus is 0 - x)."""
    return -1.0 * fma_down_emulated(-1.0 * a, b, -1.0 * c)


@triton.jit
def add_down_emulated(a, b):
    """`add_down` without PTX: a*1 + b."""
    return fma_down_emulated(a, tl.full(a.shape, 1.0, a.dtype), b)


@triton.jit
def add_up_emulated(a, b):
    """`add_up` without PTX."""
    return -1.0 * add_down_emulated(-1.0 * a, -1.0 * b)


@triton.jit
def mul_down_emulated(a, b):
    """`mul_down` without PTX: a*b + 0, which keeps the product's sign when it is a zero and the sum is rounded down."""
    return fma_down_emulated(a, b, tl.full(a.shape, 0.0, a.dtype))


@triton.jit
def mul_up_emulated(a, b):
    """`mul_up` without PTX."""
    return -1.0 * mul_down_emulated(-1.0 * a, b)
