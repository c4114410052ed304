"""Single operations rounded once in a wanted direction, and sums of products in many orders. Numbers are float64 arrays of narrower values.

A product of two float32 numbers is exact in float64; of a sum, a quotient or a root the error's exact sign is computed beside the
float64 result, so that rounding on to the narrower format is rounding the exact result once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

numba: Any
try:
    import numba
except ImportError:  # the loops below are plain Python then: slow, the same
    numba = None

UP, DOWN, NEAREST, ZERO, AWAY, DRAWN = 1, -1, 0, 2, 3, 4  # directions; DRAWN: one of UP, DOWN, NEAREST for every operation
FLOAT32, FLOAT64, FLOAT16 = 0, 1, 2  # formats of results
KEEP, FLUSH, SERVE, MIXED = 0, 1, 2, 3  # what becomes of results below the normal range; SERVE: what helps the goal
ORDERS = ("given", "reversed", "largest first", "largest last", "falling", "rising", "with the goal first", "against it first",
          "shuffled", "pairwise", "shuffled pairs", "lanes")  # fmt: skip
ADD, SUB, MUL, DIV, SQRT, RSQRT, CAST = range(7)


def compiled(function: Callable[..., Any]) -> Any:
    if numba is None:
        return function
    try:
        return numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # no writable place for the cache
        return numba.njit(error_model="numpy")(function)


@compiled
def draw(state):  # type: ignore[no-untyped-def]
    """The high bits of a linear congruential generator's next state."""
    state[0] = state[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    return np.int64(state[0] >> np.uint64(33))


@compiled
def quantize(s, bits, least, most, direction):  # type: ignore[no-untyped-def]
    """s rounded to `bits` bits, a multiple of 2^(least - bits + 1) where it is small; beyond `most` an infinity where IEEE says so."""
    if s == 0.0 or not np.isfinite(s):
        return s
    exponent = (np.int64(np.float64(s).view(np.int64) >> 52) & 2047) - 1023
    quantum = 2.0 ** (max(exponent, least) - bits + 1)
    m = s / quantum
    if direction == 2:
        direction = -1 if s > 0 else 1
    elif direction == 3:
        direction = 1 if s > 0 else -1
    if direction == 1:
        m = np.ceil(m)
    elif direction == -1:
        m = np.floor(m)
    else:
        m = np.rint(m)
    r = m * quantum
    if r > most:
        return np.inf if direction >= 0 else most
    if r < -most:
        return -np.inf if direction <= 0 else -most
    return r


@compiled
def narrow(s, e, direction, form, flush, state):  # type: ignore[no-untyped-def]
    """s + e (s the nearest float64 number, e the error or its sign) rounded once."""
    if not np.isfinite(s):
        return s
    if direction == 4:
        direction = draw(state) % 3 - 1
    exact = e == 0.0 or not np.isfinite(e)
    if form == 1:
        if exact or direction == 0:
            return s
        if direction == 2:
            direction = -1 if s > 0 else 1
        elif direction == 3:
            direction = 1 if s > 0 else -1
        return np.nextafter(s, direction * np.inf) if e * direction > 0 else s
    if not exact and np.float64(s).view(np.int64) & 1 == 0:
        s = np.nextafter(s, np.inf if e > 0 else -np.inf)  # rounded to odd: rounding this again rounds s + e once
    if form == 2:
        return quantize(s, 11, -14, 65504.0, direction)
    if direction == 2:
        direction = -1 if s > 0 else 1
    elif direction == 3:
        direction = 1 if s > 0 else -1
    near = np.float32(s)
    if direction == 1 and near < s:
        near = np.nextafter(near, np.float32(np.inf))
    elif direction == -1 and near > s:
        near = np.nextafter(near, np.float32(-np.inf))
    f = np.float64(near)
    if flush != 0 and abs(s) < 2.0**-126 and s != 0.0:
        if flush == 1 or (flush == 2 and f * direction < 0) or (flush == 3 and draw(state) & 1):
            return 0.0
    return f


@compiled
def product_error(a, b):  # type: ignore[no-untyped-def]
    """a * b - fl(a * b), by Veltkamp and Dekker; exact away from overflow and underflow."""
    p = a * b
    c = 134217729.0 * a
    ah = c - (c - a)
    al = a - ah
    c = 134217729.0 * b
    bh = c - (c - b)
    bl = b - bh
    return ((ah * bh - p) + ah * bl + al * bh) + al * bl


@compiled
def add(a, b, direction, form, flush, state):  # type: ignore[no-untyped-def]
    s = a + b
    z = s - a
    return narrow(s, (a - (s - z)) + (b - z), direction, form, flush, state)


@compiled
def mul(a, b, direction, form, flush, state):  # type: ignore[no-untyped-def]
    return narrow(a * b, product_error(a, b) if form == 1 else 0.0, direction, form, flush, state)


@compiled
def single(op, a, b, direction, form, flush, state):  # type: ignore[no-untyped-def]
    """One operation, rounded once."""
    if op == 0:
        return add(a, b, direction, form, flush, state)
    if op == 1:
        return add(a, -b, direction, form, flush, state)
    if op == 2:
        return mul(a, b, direction, form, flush, state)
    if op == 3:
        q = a / b
        if not np.isfinite(q) or q == 0.0:
            return narrow(q, 0.0, direction, form, flush, state)
        left = (a - q * b) - product_error(q, b)  # a - q b: its sign is exact
        return narrow(q, left if b > 0 else -left, direction, form, flush, state)
    if op == 4:
        r = np.sqrt(a)
        if not np.isfinite(r) or r == 0.0:
            return r
        return narrow(r, (a - r * r) - product_error(r, r), direction, form, flush, state)
    if op == 5:
        return narrow(1.0 / np.sqrt(a), 0.0, direction, form, flush, state)  # within an ulp or so of float64: hardware does worse
    return narrow(a, 0.0, direction, form, flush, state)


@compiled
def pairs(v, goal, op, left, right, start, form, flush, daz, state):  # type: ignore[no-untyped-def]
    """v[:, start + i] = v[:, left[i]] op v[:, right[i]]."""
    for p in range(v.shape[0]):
        for i in range(left.shape[0]):
            a, b = v[p, left[i]], v[p, right[i]]
            if daz and form == 0:
                if abs(a) < 2.0**-126:
                    a = 0.0
                if abs(b) < 2.0**-126:
                    b = 0.0
            v[p, start + i] = single(op, a, b, goal[p, start + i], form, flush, state)


@compiled
def leaks(v, goal, left, slope, start, form, flush, daz, state):  # type: ignore[no-untyped-def]
    """v[:, start + i] = x where x is not negative, else slope * x."""
    for p in range(v.shape[0]):
        for i in range(left.shape[0]):
            a = v[p, left[i]]
            if daz and form == 0 and abs(a) < 2.0**-126:
                a = 0.0
            if a < 0:
                a = mul(slope, a, goal[p, start + i], form, flush, state)
            v[p, start + i] = a


@compiled
def convert(v, goal, left, start, bits, least, most, flush, state):  # type: ignore[no-untyped-def]
    """Operands as a tensor core reads them. Beyond `most` they are infinite, below the normal range perhaps zero."""
    for p in range(v.shape[0]):
        for i in range(left.shape[0]):
            a, d = v[p, left[i]], goal[p, start + i]
            if d == 4:
                d = draw(state) % 3 - 1
            r = quantize(a, bits, least, most, d)
            if abs(a) > most:
                r = np.inf if a > 0 else -np.inf
            elif flush != 0 and abs(a) < 2.0**least and a != 0.0:
                if flush == 1 or (flush == 2 and r * d < 0) or (flush == 3 and draw(state) & 1):
                    r = 0.0
            v[p, start + i] = r


@compiled
def arrange(terms, n, order, direction, turn, key, state):  # type: ignore[no-untyped-def]
    """turn[:n] is the order in which the terms are summed."""
    for k in range(n):
        turn[k] = k
    if order == 1:
        for k in range(n):
            turn[k] = n - 1 - k
    elif order == 2 or order == 3:
        best = 0
        for k in range(1, n):
            if abs(terms[k]) > abs(terms[best]):
                best = k
        if n > 1:
            at = 0 if order == 2 else n - 1
            turn[at], turn[best] = best, turn[at]
    elif order == 4 or order == 5:
        for k in range(n):
            key[k] = -abs(terms[k]) if order == 4 else abs(terms[k])
        for k in range(1, n):  # by hand: making machine code of np.argsort takes seconds
            term, at, size = turn[k], k, key[turn[k]]
            while at > 0 and key[turn[at - 1]] > size:
                turn[at] = turn[at - 1]
                at -= 1
            turn[at] = term
    elif order == 6 or order == 7:
        sign = -1.0 if direction == -1 else 1.0
        if order == 7:
            sign = -sign
        at = 0
        for k in range(n):
            if terms[k] * sign > 0:
                turn[at] = k
                at += 1
        for k in range(n):
            if not terms[k] * sign > 0:
                turn[at] = k
                at += 1
    elif order == 8 or order == 10:
        for k in range(n - 1, 0, -1):
            j = draw(state) % (k + 1)
            turn[k], turn[j] = turn[j], turn[k]


@compiled
def dots(v, goal, x, w, bias, start, form, order, fma, bias_first, flush, daz, state):  # type: ignore[no-untyped-def]
    """v[:, start + i] = sum over k of v[:, x[i, k]] v[:, w[i, k]], and v[:, bias[i]]. Cell 0 is a zero that nobody adds.

    fma 0: never, 1: always, 2: now and then.
    """
    taps = x.shape[1]
    left, right, terms, key = np.empty(taps), np.empty(taps), np.empty(taps), np.empty(taps)
    parts, turn = np.empty(taps + 9), np.empty(taps + 1, np.int64)
    tiny = 2.0**-126 if daz and form == 0 else 0.0
    for p in range(v.shape[0]):
        for i in range(x.shape[0]):
            n = np.int64(0)  # not the literal 0, of which `arrange` would be made once more
            for k in range(taps):
                if x[i, k] == 0 or w[i, k] == 0:
                    continue
                a, b = v[p, x[i, k]], v[p, w[i, k]]
                if abs(a) < tiny:
                    a = 0.0
                if abs(b) < tiny:
                    b = 0.0
                t = a * b
                if t != 0.0:  # what is not a number is kept
                    left[n], right[n], terms[n] = a, b, t
                    n += 1
            d = goal[p, start + i]
            c = v[p, bias[i]]
            if abs(c) < tiny:
                c = 0.0
            if order != 0:
                arrange(terms, n, order, d, turn, key, state)
            total, some = 0.0, False
            if bias_first and c != 0.0:
                total, some = c, True
            if order >= 9:
                size = 0
                if some:
                    parts[0] = total
                    size = 1
                if order == 11:  # eight running sums, then a tree
                    lanes = min(8, n)
                    for k in range(n):
                        q = turn[k]
                        t = mul(left[q], right[q], d, form, flush, state)
                        if k < lanes:
                            parts[size + k] = t
                        else:
                            parts[size + k % lanes] = add(parts[size + k % lanes], t, d, form, flush, state)
                    size += lanes
                else:
                    for k in range(n):
                        q = turn[k]
                        parts[size] = mul(left[q], right[q], d, form, flush, state)
                        size += 1
                while size > 1:
                    for k in range(size // 2):
                        parts[k] = add(parts[2 * k], parts[2 * k + 1], d, form, flush, state)
                    if size % 2:
                        parts[size // 2] = parts[size - 1]
                    size = (size + 1) // 2
                if size:
                    total, some = parts[0], True
            else:
                for k in range(n):
                    q = turn[k] if order != 0 else k
                    if not some:
                        total, some = mul(left[q], right[q], d, form, flush, state), True
                        continue
                    if abs(total) < tiny:
                        total = 0.0
                    if form == 0 and (fma == 1 or (fma == 2 and draw(state) & 1)):
                        total = add(terms[q], total, d, form, flush, state)
                    else:
                        total = add(total, mul(left[q], right[q], d, form, flush, state), d, form, flush, state)
            if not bias_first and c != 0.0:
                if abs(total) < tiny:
                    total = 0.0
                total = add(total, c, d, form, flush, state) if some else c
            v[p, start + i] = total


@compiled
def near_dots(v, x, w, bias, start):  # type: ignore[no-untyped-def]
    """As dots, in float64."""
    for p in range(v.shape[0]):
        for i in range(x.shape[0]):
            total = v[p, bias[i]]
            for k in range(x.shape[1]):
                if x[i, k] != 0 and w[i, k] != 0:
                    total += v[p, x[i, k]] * v[p, w[i, k]]
            v[p, start + i] = total


@compiled
def back_dots(v, d, x, w, bias, start):  # type: ignore[no-untyped-def]
    """Adds to d the derivatives by the operands of dots."""
    for p in range(v.shape[0]):
        for i in range(x.shape[0]):
            g = d[p, start + i]
            if g == 0.0:
                continue
            d[p, bias[i]] += g
            for k in range(x.shape[1]):
                if x[i, k] != 0 and w[i, k] != 0:
                    d[p, x[i, k]] += g * v[p, w[i, k]]
                    d[p, w[i, k]] += g * v[p, x[i, k]]
