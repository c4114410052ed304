"""The matrix products of all forms: x [BM, BK] times w [BK, BN] on top of a float64 accumulator."""

import triton
import triton.language as tl


@triton.jit
def multiply(x, w, acc, T: tl.constexpr, FORM: tl.constexpr):
    """acc + x w, acc float64.

    float64  tensor cores (DMMA): fused multiply-adds in IEEE float64, BK more roundings on the accumulator's chain.
    ieee     float32 fused multiply-adds from zero, at most BK roundings of unit 2^-24; added to acc in float64.
    tf32x3   parts of 11 bits: x = x1 + x2 + rest, |rest| <= 2^-20 |x| whichever way parts are rounded; x1 w1 + x1 w2 + x2 w1 are kept.
    bf16x6   three parts of 8 bits each, the six products that matter.
             Both lose at most 2^-18 |x||w| a product and are summed by a tensor core from zero, at 2^-22 an addition: the
             stated model (docs/soundness.md, section 6). The block is then added to acc in float64.
    """
    if T == tl.float64:
        return tl.dot(x, w, acc, out_dtype=tl.float64)
    else:
        return acc + tl.dot(x, w, input_precision=FORM, out_dtype=tl.float32).to(tl.float64)
