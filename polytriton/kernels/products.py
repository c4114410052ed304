"""The matrix products of all forms: x [BM, BK] times w [BK, BN] on top of a float64 accumulator."""

import triton
import triton.language as tl


@triton.jit
def multiply(x, w, acc, T: tl.constexpr, FORM: tl.constexpr):
    """acc + x w, acc float64.

    float64  tensor cores (DMMA): fused multiply-adds in IEEE float64, BK more roundings on the accumulator's chain.
    ieee     float32 fused multiply-adds from zero, at most BK roundings of unit 2^-24; added to acc in float64.
    tf32x3   x = x1 + x2 + rx, w likewise, parts of 11 bits each: |rx| <= 2^-20 |x| whichever way parts are rounded. Kept are
             x1 w1 + x1 w2 + x2 w1, so a product loses at most 3.1 * 2^-20 |x||w| ...
    bf16x6   three parts of 8 bits each, the six products that matter: at most 2^-20 |x||w| is lost; and both are summed by a
             tensor core from zero: MODEL, see runtime.soundness: every addition loses at most 2^-22 of the magnitudes so far
             (aligned addends truncated to 24 bits or more). Then added to acc in float64.
    """
    if T == tl.float64:
        return tl.dot(x, w, acc, out_dtype=tl.float64)
    else:
        return acc + tl.dot(x, w, input_precision=FORM, out_dtype=tl.float32).to(tl.float64)
