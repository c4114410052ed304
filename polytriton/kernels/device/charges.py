"""What a row's error grows by when a node is substituted, from the node's numbers: t of its table."""

# mypy: disable-error-code="no-untyped-def"
import triton
import triton.language as tl

from polytriton.kernels.device.forward import GROW


@triton.jit
def node_charge(
    reached, own, magnitude, babs, image, numbers_ptr, operand_ptr,
    PENDING: tl.constexpr, DEPLOYED: tl.constexpr, AFFINE: tl.constexpr, FLUSH: tl.constexpr,
    OPERAND: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """t of a block of an image's cells: a row's error grows by |M| t (runtime.soundness).

        t = own + by_magnitude S + by_bias |b| + eta sum |operand| + by_value max(|lo|, |hi|)

    AFFINE: the node has weights, so S (its magnitude) and b count; DEPLOYED: it has an error of its own. PENDING: coefficients come
    with roundings of their own, by_value of what the node can `reach`. FLUSH: weights below the smallest normal number of the
    coefficients may be off by eta each; the operand's sum is that of its OPERAND parts, WIDE the power of two that holds them.
    by_magnitude holds gamma_K for the most terms that an entry of M W can have. All of one sign: GROW covers the roundings.
    """
    t = tl.full((BLOCK,), 0.0, tl.float64)
    if PENDING:
        t += tl.load(numbers_ptr + 2) * reached
    if DEPLOYED:
        t += own
    if AFFINE:
        t += tl.load(numbers_ptr) * magnitude
        t += tl.load(numbers_ptr + 1) * babs
    if FLUSH:
        parts = tl.arange(0, WIDE)
        t += tl.load(numbers_ptr + 3) * tl.sum(
            tl.load(operand_ptr + image.to(tl.int64) * OPERAND + parts, mask=parts < OPERAND, other=0.0), 0
        )
    return t * GROW
