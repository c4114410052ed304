"""The float64 interpreter against torch's own operators, and by hand where torch has none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from polytriton.errors import InvalidIR
from polytriton.ir.interp import evaluate, run, user_shape
from polytriton.ir.net import Attr, Builder, Net
from polytriton.runtime.executor import torch_forward
from tests.oracle.nets import nets, toy_dense


def one(
    op: str, shape: tuple[int, ...], *, operands: int = 1, seed: int = 0, **attrs: Attr | np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of three through one operator; arrays among the attributes become weights."""
    b = Builder("one")
    x = b.input(shape)
    held = {k: b.constant(v, k) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
    net = b.build(b.add(op, (x,) * operands, **held))
    batch = np.random.default_rng(seed).standard_normal((3, *shape))
    return torch.from_numpy(batch), torch.from_numpy(evaluate(net, batch)[net.output])


def near(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@st.composite
def stencils(draw: st.DrawFn, padding: int = 2, least: int = -1) -> dict[str, tuple[int, ...]]:
    two = lambda s: draw(st.tuples(s, s))  # noqa: E731
    return {
        "k": two(st.integers(1, 3)),
        "s": two(st.integers(1, 3)),
        "d": two(st.integers(1, 2)),
        "p": draw(st.tuples(*[st.integers(least, padding)] * 4)),
    }


@given(stencils(), st.sampled_from([(1, 2, 3), (2, 4, 4), (4, 4, 8)]), st.integers(0, 99))
def test_convolution_is_torchs(stencil: dict[str, tuple[int, ...]], groups: tuple[int, int, int], seed: int) -> None:
    g, ci, co = groups
    rng = np.random.default_rng(seed)
    w, b = rng.standard_normal((co, ci // g, *stencil["k"])), rng.standard_normal(co)
    try:
        x, y = one("conv", (ci, 6, 5), seed=seed, w=w, b=b, g=g, **stencil)
    except InvalidIR:
        return
    t, left, bottom, right = stencil["p"]
    want = F.conv2d(F.pad(x, (left, right, t, bottom)), torch.from_numpy(w), torch.from_numpy(b), stencil["s"], 0, stencil["d"], g)
    near(y, want)


@given(stencils(least=0), st.integers(0, 99))
def test_max_pool_is_torchs(stencil: dict[str, tuple[int, ...]], seed: int) -> None:
    try:
        x, y = one("maxpool", (2, 6, 5), seed=seed, **stencil)
    except InvalidIR:
        return
    t, left, bottom, right = stencil["p"]
    near(y, F.max_pool2d(F.pad(x, (left, right, t, bottom), value=-torch.inf), stencil["k"], stencil["s"], 0, stencil["d"]))


def test_a_pool_never_takes_its_padding() -> None:
    b = Builder("pool")
    net = b.build(b.add("maxpool", (b.input((1, 2, 2)),), k=(2, 2), p=(1, 1, 1, 1)))
    assert run(net, -np.ones((1, 4))).max() == -1


def test_plain_operators_are_torchs() -> None:
    rng = np.random.default_rng(1)
    w, b = rng.standard_normal((4, 12)), rng.standard_normal(4)
    x, y = one("linear", (3, 2, 2), w=w, b=b)
    near(y, F.linear(x.flatten(1), torch.from_numpy(w), torch.from_numpy(b)))
    assert one("linear", (12,), w=w, b=b, to=(2, 1, 2))[1].shape == (3, 2, 1, 2)
    a, c = rng.standard_normal((3, 1, 1)), rng.standard_normal((1, 2, 2))
    x, y = one("scale", (3, 2, 2), a=a, c=c)
    near(y, x * torch.from_numpy(a) + torch.from_numpy(c))
    for slope in (0.0, 0.1, -1.0, 2.0):
        x, y = one("relu", (5,), slope=slope)
        near(y, F.leaky_relu(x, slope))
    x, y = one("add", (4,), operands=2)
    near(y, 2 * x)
    x, y = one("sub", (4,), operands=2)
    near(y, 0 * x)
    x, y = one("concat", (2, 3, 2), operands=3, axis=1)
    near(y, torch.cat([x, x, x], 2))
    x, y = one("reshape", (2, 6), to=(3, 4))
    near(y, x.reshape(3, 3, 4))
    x, y = one("transpose", (2, 3, 4), perm=(2, 0, 1))
    near(y, x.permute(0, 3, 1, 2))
    x, y = one("slice", (2, 7), axis=1, start=5, step=-2, size=3)
    near(y, x[:, :, [5, 3, 1]])
    x, y = one("pad", (2, 3), lo=(1, 0), hi=(0, 2))
    near(y, F.pad(x, (0, 2, 1, 0)))
    x, y = one("gather", (2, 2), index=np.array([3, -1, 0, 3, 1, -1]), to=(3, 2))
    near(y, torch.stack([x[:, 1, 1], 0 * x[:, 0, 0], x[:, 0, 0], x[:, 1, 1], x[:, 0, 1], 0 * x[:, 0, 0]], 1).view(3, 3, 2))


def test_subtraction_and_order_of_operands() -> None:
    b = Builder("order")
    x = b.input((2,))
    y = b.add("scale", (x,), a=b.constant(np.array([3.0])), c=b.constant(np.array([1.0])))
    assert run(b.build(b.add("sub", (x, y))), np.array([[1.0, 5.0]])).tolist() == [[-3.0, -11.0]]
    assert run(b.build(b.add("concat", (y, x), axis=0)), np.array([[1.0, 5.0]])).tolist() == [[4.0, 16.0, 1.0, 5.0]]


def test_an_input_takes_cells_of_the_users_shape() -> None:
    b = Builder("take")
    x = b.input((3,), take=b.constant(np.array([5, -1, 0])), of=(2, 3))
    net = b.build(b.add("relu", (x,)))
    assert user_shape(net) == (2, 3)
    assert run(net, np.arange(1.0, 7).reshape(1, 2, 3)).tolist() == [[6, 0, 1]]


@pytest.mark.parametrize("size", [0, 1, 3])
def test_an_input_of_the_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(InvalidIR, match="inputs of 2 values") as caught:
        run(toy_dense(), np.zeros(size))
    assert "reshape" in caught.value.remedy


@given(nets(scale="normal"))
@limits(max_examples=60)
def test_the_interpreter_and_the_torch_executor_agree(net: Net) -> None:
    x = np.random.default_rng(3).standard_normal((4, *user_shape(net)))
    want = run(net, x)
    got = torch_forward(net, torch.float64)(torch.from_numpy(x)).numpy()
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * (1 + np.abs(want).max(initial=0)))
