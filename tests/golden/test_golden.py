"""What the compiler makes of three small networks, word for word, in files a person can read.

After a change that is meant to be seen there: `python -m tests.golden.test_golden` writes the files anew; read the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from polytriton.ir.net import Net
from polytriton.ir.plan_text import parse_plan, print_plan
from polytriton.ir.text import parse_net, print_net
from polytriton.passes.pipeline import compile_net
from tests.oracle.nets import toy_conv, toy_residual
from tests.passes.texts import read

FOLDER = Path(__file__).parent

DENSENET = """
net @dense_block(%x: f32[8x8x2]) -> f32[3] {
  %t = transpose %x {perm=2,0,1} : f32[2x8x8]
  %n = scale %t {a=@a, c=@c} : f32[2x8x8]
  %p = conv %n {w=@w0, b=@b0, k=3x3} : f32[4x6x6]
  %r = relu %p : f32[4x6x6]
  %g = conv %r {w=@w1, b=@b1, k=3x3, p=1,1,1,1} : f32[4x6x6]
  %m = scale %g {a=@a1, c=@c1} : f32[4x6x6]
  %h = relu %m : f32[4x6x6]
  %k = concat %r, %h {axis=0} : f32[8x6x6]
  %l = conv %k {w=@w2, b=@b2, k=2x2, s=2x2} : f32[4x3x3]
  %q = relu %l {slope=0.125} : f32[4x3x3]
  %u = maxpool %q {k=2x2} : f32[4x2x2]
  %f = reshape %u {to=16} : f32[16]
  %y = linear %f {w=@w3, b=@b3} : f32[3]
  return %y
}
"""


def nets() -> dict[str, Net]:
    return {n.name: n for n in (toy_conv(), toy_residual(), read(DENSENET))}


def shown(net: Net) -> str:
    compiled = compile_net(net)
    return print_net(net) + "\n" + print_net(compiled.net) + "\n" + print_plan(compiled.plan)


@pytest.mark.parametrize("name", nets())
def test_compiled_text_is_as_filed(name: str) -> None:
    net = nets()[name]
    want = (FOLDER / f"{name}.ptir").read_text()
    assert shown(net) == want, "run `python -m tests.golden.test_golden` and read the diff"
    before, after, plan = want.split("\n\n")
    compiled = compile_net(net)
    assert parse_net(before + "\n") == net and parse_net(after + "\n") == compiled.net and parse_plan(plan) == compiled.plan


def test_no_file_is_left_over() -> None:
    assert {p.stem for p in FOLDER.glob("*.ptir")} == set(nets())


if __name__ == "__main__":
    for name, net in nets().items():
        (FOLDER / f"{name}.ptir").write_text(shown(net))
