"""Every rule of the checker, broken one at a time; the message names the node and says what to do."""

from __future__ import annotations

import numpy as np
import pytest

from polytriton.errors import InvalidIR
from polytriton.ir.check import check_net
from polytriton.ir.net import Attr, Net, Node, Ref

W = {
    "w": np.ones((2, 2, 3, 3), np.float32),
    "b": np.zeros(2, np.float32),
    "m": np.ones((3, 32), np.float32),
    "n": np.zeros(3, np.float32),
    "a": np.ones((2, 1, 1), np.float32),
    "i": np.arange(32, dtype=np.int64),
    "t": np.arange(32, dtype=np.int64),
}
IMAGE = (2, 4, 4)
X = Node("x", "input", (), IMAGE)
CONV: dict[str, Attr] = {"w": Ref("w"), "b": Ref("b"), "k": (3, 3), "p": (1, 1, 1, 1)}
LINEAR: dict[str, Attr] = {"w": Ref("m"), "b": Ref("n")}
SCALE: dict[str, Attr] = {"a": Ref("a"), "c": Ref("a")}
SLICE: dict[str, Attr] = {"axis": 1, "start": 0, "step": 1, "size": 2}


def net(*nodes: Node, output: str = "y", name: str = "n", **weights: np.ndarray) -> Net:
    return Net(name, (X, *nodes), output, {**W, **weights})


def y(op: str, shape: tuple[int, ...], attrs: dict[str, Attr] | None = None, *inputs: str, **more: Attr) -> Node:
    return Node("y", op, inputs or ("x",), shape, {**(attrs or {}), **more})


FLAT = Node("r", "reshape", ("x",), (32,), {"to": (32,)})
TALL = Node("r", "reshape", ("x",), (1, 8, 4), {"to": (1, 8, 4)})
GOOD = [
    y("conv", IMAGE, CONV),
    y("linear", (3,), LINEAR),
    y("linear", (3, 1), LINEAR, to=(3, 1)),
    y("scale", IMAGE, SCALE),
    y("relu", IMAGE, slope=0.5),
    y("add", IMAGE, {}, "x", "x"),
    y("concat", (4, 4, 4), {"axis": 0}, "x", "x"),
    y("maxpool", (2, 2, 2), k=(2, 2), s=(2, 2)),
    y("reshape", (32,), to=(32,)),
    y("transpose", (4, 4, 2), perm=(1, 2, 0)),
    y("slice", (2, 2, 4), SLICE),
    y("pad", (2, 5, 4), lo=(0, 1, 0), hi=(0, 0, 0)),
    y("gather", (32,), index=Ref("i"), to=(32,)),
]


@pytest.mark.parametrize("node", GOOD, ids=[n.op for n in GOOD])
def test_what_obeys_the_rules_passes(node: Node) -> None:
    check_net(net(node))


NAN = np.array([0, np.nan], np.float32)
BAD: list[tuple[str, Net, str]] = [
    ("no input", Net("n", (), "y"), "@n does not begin"),
    ("input not first", Net("n", (Node("y", "relu", ("x",), IMAGE), X), "y"), "@n does not begin"),
    ("second input", net(Node("z", "input", (), (2,)), y("relu", IMAGE)), "%z is a second input"),
    ("duplicate name", net(y("relu", IMAGE), y("relu", IMAGE)), "%y is defined twice"),
    ("undefined operand", net(y("relu", IMAGE, {}, "q")), "%y reads %q"),
    ("reads itself", net(y("relu", IMAGE, {}, "y")), "%y reads %y"),
    ("wrong order", net(y("relu", IMAGE, {}, "z"), Node("z", "relu", ("x",), IMAGE)), "%y reads %z"),
    ("undefined output", net(y("relu", IMAGE), output="q"), "%q"),
    ("illegal name", net(Node("y 1", "relu", ("x",), IMAGE), output="y 1"), "'y 1'"),
    ("illegal network name", net(y("relu", IMAGE), name="a-b"), "'a-b'"),
    ("no cells", Net("n", (Node("x", "input", (), (0, 2)), y("relu", (0, 2))), "y"), "%x"),
    ("wrong shape", net(y("relu", (2, 4, 5))), "%y = relu: declared [2, 4, 5], inferred [2, 4, 4]"),
    ("unknown operator", net(y("cosh", IMAGE)), "%y: unknown operator 'cosh'"),
    ("too many operands", net(y("relu", IMAGE, {}, "x", "x")), "%y = relu: takes 1 operands, got 2"),
    ("too few operands", net(y("add", IMAGE)), "%y = add: takes 2 operands, got 1"),
    ("no operands", net(Node("y", "concat", (), IMAGE, {"axis": 0})), "%y = concat: takes at least 1"),
    ("missing attribute", net(y("maxpool", IMAGE)), "%y = maxpool: attribute k is missing"),
    ("unknown attribute", net(y("relu", IMAGE, alpha=0.1)), "%y = relu: unknown attribute alpha"),
    ("attribute of another type", net(y("concat", IMAGE, axis=1.5)), "%y = concat: attribute axis must be int"),
    ("a number for a weight", net(y("linear", (3,), LINEAR, w=3)), "%y = linear: attribute w must be Ref"),
    ("NaN slope", net(y("relu", IMAGE, slope=float("nan"))), "%y = relu: attribute slope must be finite"),
    ("infinite slope", net(y("relu", IMAGE, slope=float("inf"))), "%y = relu: attribute slope must be finite"),
    ("missing weight", net(y("linear", (3,), LINEAR, w=Ref("gone"))), "%y = linear: weight @gone is missing"),
    ("missing magnitude", net(y("linear", (3,), LINEAR, wabs=Ref("gone"))), "%y: weight @gone is missing"),
    ("NaN weight", net(y("conv", IMAGE, CONV), b=NAN), "%y: weight @b holds NaN"),
    ("infinite weight", net(y("linear", (3,), LINEAR), m=np.full((3, 32), np.inf, np.float32)), "%y: weight @m holds NaN"),
    ("integer weight", net(y("linear", (3,), LINEAR), n=np.zeros(3, np.int64)), "%y: weight @n has type int64"),
    ("half weight", net(y("linear", (3,), LINEAR), n=np.zeros(3, np.float16)), "%y: weight @n has type float16"),
    ("float index", net(y("gather", (32,), index=Ref("i"), to=(32,)), i=np.arange(32.0)), "%y: weight @i has type float64"),
    ("weight does not fit", net(y("linear", (3,), LINEAR), m=np.ones((3, 31), np.float32)), "%y = linear"),
    ("bias does not fit", net(y("linear", (3,), LINEAR), n=np.zeros(2, np.float32)), "%y = linear"),
    ("outputs do not fit", net(y("linear", (2,), LINEAR, to=(2,))), "%y = linear"),
    ("conv kernel differs", net(y("conv", IMAGE, CONV, k=(3, 1))), "%y = conv"),
    ("conv channels", net(y("conv", IMAGE, CONV, g=2)), "%y = conv"),
    ("conv bias", net(y("conv", IMAGE, CONV), b=np.zeros(3, np.float32)), "%y = conv"),
    ("conv of a vector", Net("n", (Node("x", "input", (), (4,)), y("conv", IMAGE, CONV)), "y", W), "%y = conv"),
    ("no stride", net(y("conv", IMAGE, CONV, s=(0, 1))), "%y = conv"),
    ("short padding", net(y("conv", IMAGE, CONV, p=(1, 1))), "%y = conv"),
    ("kernel over the image", net(y("conv", IMAGE, CONV, p=(-1, 0, -1, 0))), "%y = conv: the window"),
    ("scale shape", net(y("scale", IMAGE, SCALE), a=np.ones((3, 1, 1), np.float32)), "%y = scale"),
    ("scale rank", net(y("scale", IMAGE, SCALE), a=np.ones((1, 2, 1, 1), np.float32)), "%y = scale"),
    ("scale widens", Net("n", (Node("x", "input", (), (1,)), y("scale", (2,), SCALE)), "y", {"a": np.ones(2, np.float32)}), "%y = scale"),
    ("unequal sum", net(FLAT, y("add", IMAGE, {}, "x", "r")), "%y = add"),
    ("pool of a vector", Net("n", (Node("x", "input", (), (4,)), y("maxpool", (4,), k=(1, 1))), "y"), "%y = maxpool"),
    ("pool of a scalar", Net("n", (Node("x", "input", (), ()), y("maxpool", (), k=(1, 1))), "y"), "%y = maxpool"),
    ("pool in the padding", net(y("maxpool", (2, 6, 4), k=(1, 1), p=(1, 0, 1, 0))), "%y = maxpool: a window lies wholly"),
    ("pool in the far padding", net(y("maxpool", (2, 4, 10), k=(1, 2), p=(0, 0, 0, 7))), "%y = maxpool: a window lies wholly"),
    ("pool between dilated taps", net(y("maxpool", (2, 1, 4), k=(2, 1), d=(5, 1), p=(1, 0, 1, 0))), "%y = maxpool: a window lies wholly"),
    ("pool of vast padding", net(y("maxpool", (2, 4, 4), k=(1, 1), p=(10**15, 0, 0, 0))), "%y = maxpool"),
    ("concat axis", net(y("concat", IMAGE, {"axis": 3}, "x", "x")), "%y = concat"),
    ("concat shapes", net(TALL, y("concat", IMAGE, {"axis": 0}, "x", "r")), "%y = concat"),
    ("reshape size", net(y("reshape", (31,), to=(31,))), "%y = reshape"),
    ("negative reshape", net(y("reshape", (-4, -8), to=(-4, -8))), "%y = reshape"),
    ("perm repeats", net(y("transpose", IMAGE, perm=(0, 1, 1))), "%y = transpose"),
    ("slice leaves the axis", net(y("slice", (2, 2, 4), SLICE, start=3)), "%y = slice"),
    ("slice before the axis", net(y("slice", (2, 2, 4), SLICE, step=-1)), "%y = slice"),
    ("slice of nothing", net(y("slice", (2, 0, 4), SLICE, size=0)), "%y = slice"),
    ("negative pad", net(y("pad", (2, 3, 4), lo=(0, -1, 0), hi=(0, 0, 0))), "%y = pad"),
    ("pad of a scalar", Net("n", (Node("x", "input", (), ()), y("pad", (1,), lo=(0,), hi=(0,))), "y"), "%y = pad"),
    ("gather size", net(y("gather", (31,), index=Ref("i"), to=(31,))), "%y = gather"),
    ("gather beyond", net(y("gather", (32,), index=Ref("i"), to=(32,)), i=np.arange(1, 33)), "%y = gather"),
    ("gather before", net(y("gather", (32,), index=Ref("i"), to=(32,)), i=np.arange(-2, 30)), "%y = gather"),
    ("take size", Net("n", (Node("x", "input", (), (31,), {"take": Ref("t")}), y("relu", (31,))), "y", W), "%x = input"),
    ("take beyond", Net("n", (Node("x", "input", (), (32,), {"take": Ref("t"), "of": (31,)}), y("relu", (32,))), "y", W), "%x = input"),
]  # fmt: skip


@pytest.mark.parametrize("bad, says", [(n, s) for _, n, s in BAD], ids=[i for i, _, _ in BAD])
def test_what_breaks_a_rule_is_refused_by_name(bad: Net, says: str) -> None:
    with pytest.raises(InvalidIR) as caught:
        check_net(bad)
    assert says in caught.value.message and caught.value.remedy
