"""One turn of the ascent of slopes and multipliers (runtime/ascent.py, which has the mathematics), rows of a batch one beside the other.

A row walks back through the network by `dense_step`, `conv_step`, `join_rows` and, at its ReLUs, `relax_own`; at the input it takes
the corner of its box where it is least (`take_corners`); from there a point goes forward through the row's own lines by
`forward_dense`, `forward_conv`, `join_rows` and `follow_own`; then every row is judged (`judge_rows`), every neuron's slope or
multiplier moves (`climb_rows`), and the turn is counted (`end_turn`). Nothing of it waits for the host.

**None of this is charged for its roundings, and need not be.** What comes out are slopes and multipliers, proposals: any slope
between the operator's own and 1 makes a line below it, any multiplier that is not negative keeps a bound valid
(docs/soundness.md, section 21), and what is claimed is one later walk with them that charges all that it rounds (runtime/chosen.py,
which moves whatever it is given into those ranges). An error here costs some of a bound, never its truth: so the kernels have no error
terms, and judge by float32 whether a turn was better.

A neuron has one free number, [rows, SIZE]: where its row's box [lo, hi] leaves the sign open, the slope of the line below; where the box
shows a sign that was assumed (`side` 1 or -1), the multiplier of that sign, at least zero; elsewhere nothing reads it.
"""

# mypy: disable-error-code="no-untyped-def"
import triton
import triton.language as tl

MEAN = tl.constexpr(1 - 0.9)  # Adam's own: runtime.ascent.FIRST and SECOND
SQUARE = tl.constexpr(1 - 0.999)
TINY = tl.constexpr(1e-8)
RATES = tl.constexpr(4)  # numbers of a turn, see climb_rows


@triton.jit
def own_line(lo, hi, free, LOW: tl.constexpr):
    """Of each neuron whether it is open, then below, above and cut: below z <= f(z) <= above z + cut, f(z) = LOW z for negative z."""
    undecided = (lo < 0) & (hi > 0)
    decided = tl.where(lo >= 0, 1.0, LOW)
    above = tl.where(undecided, (hi - LOW * lo) / tl.maximum(hi - lo, 1e-30), decided)
    return undecided, tl.where(undecided, free, decided), above, tl.where(undecided, (LOW - above) * lo, 0.0)


@triton.jit
def taken(SIZE: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr):
    """The rows and cells of a program of a grid of rows and columns."""
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    q = tl.program_id(1) * BQ + tl.arange(0, BQ)
    return rows, q, rows[:, None] * SIZE + q[None, :]


@triton.jit
def relax_own(
    m_ptr, lo_ptr, hi_ptr, free_ptr, side_ptr, out_ptr, count_ptr,
    SIGNED: tl.constexpr, LOW: tl.constexpr, SIZE: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Coefficients over f(z) become coefficients over z: times below where they are at least zero, above where less, less side free."""
    count = tl.load(count_ptr)
    rows, q, at = taken(SIZE, BR, BQ)
    inside = (rows < count)[:, None] & (q < SIZE)[None, :]
    lo = tl.load(lo_ptr + at, mask=inside, other=0.0)
    hi = tl.load(hi_ptr + at, mask=inside, other=0.0)
    m = tl.load(m_ptr + at, mask=inside, other=0.0)
    read = inside & (lo < 0) & (hi > 0)  # a line of the cache without such a neuron is not fetched
    if SIGNED:
        side = tl.load(side_ptr + at, mask=inside, other=0)
        read = read | (side != 0)
    free = tl.load(free_ptr + at, mask=read, other=0.0)
    undecided, below, above, _ = own_line(lo, hi, free, LOW)
    out = m * tl.where(m >= 0, below, above)
    if SIGNED:
        out -= tl.where(undecided, 0.0, side.to(tl.float32) * free)
    tl.store(out_ptr + at, out, mask=inside)


@triton.jit
def take_corners(
    m_ptr, over_ptr, lo_ptr, hi_ptr, out_ptr, worth_ptr, count_ptr,
    OVER: tl.constexpr, SIZE: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """The corner of the row's box where m x, with OVER (m + over) x, is least; `worth` begins as over x."""
    count = tl.load(count_ptr)
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    beside = tl.full((BR, BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = (rows < count)[:, None] & (q < SIZE)[None, :]
        at = rows[:, None] * SIZE + q[None, :]
        m = tl.load(m_ptr + at, mask=inside, other=0.0)
        if OVER:
            over = tl.load(over_ptr + at, mask=inside, other=0.0)
            m += over
        lo = tl.load(lo_ptr + at, mask=inside, other=0.0)
        hi = tl.load(hi_ptr + at, mask=inside, other=0.0)
        x = tl.where(m >= 0, lo, hi)
        if OVER:
            beside += over.to(tl.float64) * x.to(tl.float64)
        tl.store(out_ptr + at, x, mask=inside)
    tl.store(worth_ptr + rows, tl.sum(beside, 1), mask=rows < count)


@triton.jit
def follow_own(
    m_ptr, z_ptr, lo_ptr, hi_ptr, free_ptr, side_ptr, out_ptr, worth_ptr, count_ptr,
    SIGNED: tl.constexpr, LOW: tl.constexpr, SIZE: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """The point goes on: below z where the row's coefficient over f(z) is at least zero, above z + cut where it is less.

    What the multipliers take of the row's value, the sum of side free z, leaves its `worth`.
    """
    count = tl.load(count_ptr)
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    if SIGNED:
        lost = tl.full((BR, BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = (rows < count)[:, None] & (q < SIZE)[None, :]
        at = rows[:, None] * SIZE + q[None, :]
        lo = tl.load(lo_ptr + at, mask=inside, other=0.0)
        hi = tl.load(hi_ptr + at, mask=inside, other=0.0)
        m = tl.load(m_ptr + at, mask=inside, other=0.0)
        z = tl.load(z_ptr + at, mask=inside, other=0.0)
        read = inside & (lo < 0) & (hi > 0)
        if SIGNED:
            side = tl.load(side_ptr + at, mask=inside, other=0)
            read = read | (side != 0)
        free = tl.load(free_ptr + at, mask=read, other=0.0)
        undecided, below, above, cut = own_line(lo, hi, free, LOW)
        if SIGNED:
            lost += tl.where(undecided, 0.0, side.to(tl.float32) * free * z).to(tl.float64)
        tl.store(out_ptr + at, tl.where(m >= 0, below * z, above * z + cut), mask=inside)
    if SIGNED:
        worth = tl.load(worth_ptr + rows, mask=rows < count, other=0.0)
        tl.store(worth_ptr + rows, worth - tl.sum(lost, 1), mask=rows < count)


@triton.jit
def judge_rows(
    m_ptr, a_ptr, x_ptr, worth_ptr, best_ptr, better_ptr, corner_ptr, count_ptr,
    SIZE: tl.constexpr, INPUTS: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """A row's bound is m a + worth, a the target at the end of the forward pass; `better` where it is above the best, whose corner is kept.

    NaN is never better.
    """
    count = tl.load(count_ptr)
    rows = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    live = rows < count
    total = tl.full((BR, BQ), 0.0, tl.float64)
    for q0 in range(0, SIZE, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = live[:, None] & (q < SIZE)[None, :]
        at = rows[:, None] * SIZE + q[None, :]
        m = tl.load(m_ptr + at, mask=inside, other=0.0)
        total += m.to(tl.float64) * tl.load(a_ptr + at, mask=inside, other=0.0).to(tl.float64)
    bound = tl.sum(total, 1) + tl.load(worth_ptr + rows, mask=live, other=0.0)
    best = tl.load(best_ptr + rows, mask=live, other=0.0)
    better = bound > best
    tl.store(best_ptr + rows, bound, mask=live & better)
    tl.store(better_ptr + rows, better.to(tl.int8), mask=live)
    for q0 in range(0, INPUTS, BQ):
        q = q0 + tl.arange(0, BQ)
        inside = (live & better)[:, None] & (q < INPUTS)[None, :]
        at = rows[:, None] * INPUTS + q[None, :]
        tl.store(corner_ptr + at, tl.load(x_ptr + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def climb_rows(
    m_ptr, z_ptr, lo_ptr, hi_ptr, side_ptr, better_ptr, free_ptr, mean_ptr, square_ptr, kept_ptr, loss_ptr, numbers_ptr, turn_ptr,
    count_ptr, SIGNED: tl.constexpr, LOW: tl.constexpr, SIZE: tl.constexpr, BR: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """Keeps a better row's free numbers, then takes one step of Adam uphill from those of every row.

        open          d bound / d free = max(m, 0) z      free is kept in [LOW, 1]
        of a sign     d bound / d free = -side z          free is kept at zero or above

    numbers[turn] = the rate of slopes, that of multipliers, 1 / (1 - 0.9^k), 1 / (1 - 0.999^k) for the k-th turn. loss: what the line
    above costs the row, -min(m, 0) cut.
    """
    count = tl.load(count_ptr)
    rows, q, at = taken(SIZE, BR, BQ)
    inside = (rows < count)[:, None] & (q < SIZE)[None, :]
    better = (tl.load(better_ptr + rows, mask=rows < count, other=0) != 0)[:, None]
    lo = tl.load(lo_ptr + at, mask=inside, other=0.0)
    hi = tl.load(hi_ptr + at, mask=inside, other=0.0)
    moves = inside & (lo < 0) & (hi > 0)
    if SIGNED:
        side = tl.load(side_ptr + at, mask=inside, other=0)
        moves = moves | (side != 0)
    free = tl.load(free_ptr + at, mask=moves, other=0.0)
    m = tl.load(m_ptr + at, mask=moves, other=0.0)
    z = tl.load(z_ptr + at, mask=moves, other=0.0)
    undecided, _below, _above, cut = own_line(lo, hi, free, LOW)
    tl.store(kept_ptr + at, free, mask=moves & better)
    tl.store(loss_ptr + at, -tl.minimum(m, 0.0) * cut, mask=moves & better)
    turn = tl.load(turn_ptr) * RATES
    rate = tl.load(numbers_ptr + turn).to(tl.float32)
    uphill = tl.maximum(m, 0.0) * z
    if SIGNED:
        uphill = tl.where(undecided, uphill, -side.to(tl.float32) * z)
        rate = tl.where(undecided, rate, tl.load(numbers_ptr + turn + 1).to(tl.float32))
    mean = tl.load(mean_ptr + at, mask=moves, other=0.0)
    square = tl.load(square_ptr + at, mask=moves, other=0.0)
    mean += (uphill - mean) * MEAN
    square += (uphill * uphill - square) * SQUARE
    tl.store(mean_ptr + at, mean, mask=moves)
    tl.store(square_ptr + at, square, mask=moves)
    step = mean * tl.load(numbers_ptr + turn + 2).to(tl.float32) / (tl.sqrt(square * tl.load(numbers_ptr + turn + 3).to(tl.float32)) + TINY)
    moved = free + rate * step
    slope = tl.minimum(tl.maximum(moved, LOW), 1.0)
    tl.store(free_ptr + at, tl.where(undecided, slope, tl.maximum(moved, 0.0)), mask=moves)


@triton.jit
def end_turn(best_ptr, goal_ptr, turn_ptr, count_ptr, B: tl.constexpr):
    """One program counts the turn; where every row's best is above its goal no row is left, and what is launched still does nothing."""
    count = tl.load(count_ptr)
    left = tl.full((B,), 0, tl.int64)
    for r0 in range(0, count, B):
        rows = r0 + tl.arange(0, B)
        live = rows < count
        best = tl.load(best_ptr + rows, mask=live, other=0.0)
        left += (live & (best <= tl.load(goal_ptr + rows, mask=live, other=0.0))).to(tl.int64)
    tl.store(turn_ptr, tl.load(turn_ptr) + 1)
    tl.store(count_ptr, tl.where(tl.sum(left, 0) > 0, count, 0))
