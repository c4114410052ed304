"""Plan as text and back: `parse_plan(print_plan(p)) == p`."""

from __future__ import annotations

import re

from polytriton.errors import InvalidIR
from polytriton.ir.plan import PAYMENTS, Axis, Plan, Program, Step, Window
from polytriton.ir.text import NAME, numbered_lines
from polytriton.limit import go_on

INT = r"\d{1,18}"
_AXIS = re.compile(rf"({INT})(?:@({INT})i([+-]{INT}))?$", re.ASCII)
_HEAD = re.compile(rf"plan @({NAME}) candidates=(\w+) \{{$")
_HALO = re.compile(rf"halo %({NAME}) ({INT}),({INT}),({INT}),({INT})$", re.ASCII)
_PROGRAM = re.compile(rf"(bound|query) %({NAME}) \{{$")
_KIND = "|".join(PAYMENTS)
_PAY = rf"pay=(none|(?:{_KIND})(?:,(?:{_KIND}))*)"
_STEP = re.compile(
    rf"(\w+)\s+%({NAME})(?:\s+->\s+(.*?))?(?:\s+(check))?(?:\s+(mask))?(?:\s+{_PAY})?\s+ops=({INT}) bytes=({INT})$", re.ASCII
)
_TO = re.compile(rf"%({NAME}) \[([^\]]*)\]")
_LIST = re.compile(rf"{_TO.pattern}(?:, {_TO.pattern})*$")


def print_axis(a: Axis) -> str:
    """`5` is a whole axis; `3@2i-1` is 3 cells from 2i-1 on."""
    return str(a.size) if a.stride == 0 and a.offset == 0 else f"{a.size}@{a.stride}i{-a.offset:+d}"


def print_window(w: Window) -> str:
    return f"{print_axis(w.h)} x {print_axis(w.w)}"


def _parse_axis(text: str, where: str) -> Axis:
    m = _AXIS.match(text.strip())
    if m is None:
        raise InvalidIR(f"{where}: cannot read axis {text!r}", "write `size` or `size@STRIDEi+ORIGIN`")
    return Axis(int(m[1]), int(m[2] or 0), -int(m[3] or 0))


def _parse_window(text: str, where: str) -> Window:
    parts = text.split(" x ")
    if len(parts) != 2:
        raise InvalidIR(f"{where}: cannot read window {text!r}", "write `H x W`")
    return Window(_parse_axis(parts[0], where), _parse_axis(parts[1], where))


def print_step(s: Step) -> str:
    to = ", ".join(f"%{n} [{print_window(w)}]" for n, w in zip(s.to, s.windows, strict=True))
    body = f"{s.op:<8} %{s.node}" + (f" -> {to}" if to else "")
    pay = "" if s.pay is None else f" pay={','.join(s.pay) or 'none'}"
    return body + (" check" if s.check else "") + (" mask" if s.mask else "") + pay + f" ops={s.ops} bytes={s.bytes}"


def print_plan(plan: Plan) -> str:
    lines = [f"plan @{plan.name} candidates={plan.candidates} {{"]
    lines += [f"  halo %{n} {','.join(map(str, h))}" for n, h in plan.halos.items()]
    for p in plan:
        go_on()
        lines.append(f"  {p.kind} %{p.target} {{")
        lines += [f"    {print_step(s)}" for s in p.steps]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def parse_plan(text: str) -> Plan:
    """Reads the printer's form; comments run from // to the end of the line."""
    lines = numbered_lines(text)
    head = _HEAD.match(lines[0][1]) if lines else None
    if head is None:
        raise InvalidIR(f"line {lines[0][0] if lines else 1}: not a plan", "begin with `plan @name candidates=all {`")
    programs: list[Program] = []
    halos: dict[str, tuple[int, int, int, int]] = {}
    open_: tuple[str, str] | None = None
    steps: list[Step] = []
    closed = False
    for k, line in lines[1:]:
        if closed:
            raise InvalidIR(f"line {k}: text after the plan", "end the plan with `}`")
        if (m := _HALO.match(line)) is not None:
            halos[m[1]] = (int(m[2]), int(m[3]), int(m[4]), int(m[5]))
        elif (m := _PROGRAM.match(line)) is not None and open_ is None:
            open_, steps = (m[1], m[2]), []
        elif line == "}":
            if open_ is None:
                closed = True
            else:
                programs.append(Program(open_[0], open_[1], tuple(steps)))
                open_ = None
        elif (m := _STEP.match(line)) is not None and open_ is not None and (m[3] is None or _LIST.match(m[3])):
            targets = [(t[1], _parse_window(t[2], f"line {k}")) for t in _TO.finditer(m[3] or "")]
            to, windows = tuple(n for n, _ in targets), tuple(w for _, w in targets)
            pay = None if m[6] is None else () if m[6] == "none" else tuple(m[6].split(","))
            steps.append(Step(m[1], m[2], to, windows, bool(m[4]), bool(m[5]), pay, int(m[7]), int(m[8])))
        else:
            raise InvalidIR(f"line {k}: cannot read {line[:80]!r}", "write `op %node -> %to [H x W] ops=N bytes=N`")
    if not closed:
        raise InvalidIR("the plan is not closed", "end it with `}`")
    return Plan(head[1], tuple(programs), head[2], halos)
