"""Sum and Mean of any number of operands: additions two by two, of which every order is charged.

The specification names no order. Added in any, n numbers pass at most n - 1 roundings each, so the result is within
gamma(n - 1) (|x_1| + ... + |x_n|) of the exact sum. Here x_2, ..., x_n are added to x_1 one after another, and the sum with x_k is
charged n - 2 roundings (`ops`) beyond its own, of |s_{k-1}| + |x_k|: all of them together at least that much, for the first of them holds
|x_1| + |x_2| and each later one its |x_k|. The sums on the way are read by nobody else. Operands are enlarged first: a cell added before it
is repeated would be one number where another order makes several.
"""

from __future__ import annotations

from polytriton.frontend.onnx_values import ONE, ZERO, Act, Const, Result, Site, share


def sum_of_several(s: Site) -> Result:
    values = [s.value(i) for i in range(len(s.inputs))]
    s.need(len({v.dtype for v in values}) == 1, "operands differ in type")
    count = len(values)
    shape = s.broadcast(*(v.shape for v in values))
    first = next(k for k, v in enumerate(values) if isinstance(v, Act))
    total = values[first]
    assert isinstance(total, Act)
    if count == 1:
        return total
    total = s.expand(total, shape, "wide1")
    rest = values[:first] + values[first + 1 :]
    more = count - 2
    divided = s.op == "Mean"
    for k, v in enumerate(rest, 2):
        tag = f"first{k}" if k < count or divided else ""
        if isinstance(v, Const):
            s.need(v.floating, "its constants are no floating numbers")
            total = s.scale(total, ONE, v.value, {"slack": v.slack, "ops": v.ops + more}, tag=tag)
        else:
            other = s.expand(v, shape, f"wide{k}")
            node = s.emit("add", [total.node, s.view(other, s.node_shape(total))], {"ops": more} if more else {}, tag)
            total = s.result(node, shape, total.dtype)
    if not divided:
        return total
    factor, made = share(count)
    return s.scale(total, factor, ZERO, made)
