"""Launches as text and back: `parse_launches(print_launches(x), x.program, kernels) == x`.

    query %logits {
      buffers 10 256 64
      lives 0..0 0..2 2..3
      slots from:1
      state 0 ops=5160 {
        dense_step_df3423e3de block=64 columns=5 (m_ptr=buf:0 w_ptr=weight:logits out_ptr=buf:1 count_ptr=count:0)
        conv_step_0da65ff557 block=64 times=16 lane=1 region=1 (...)
      }
    }

What is 1 of cells, times and columns, and 0 of lane and region, is left out; `-` is a tensor that is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from polytriton.errors import InvalidIR
from polytriton.ir.launches import Kernel, Launch, Launches
from polytriton.ir.plan import Program
from polytriton.ir.text import NAME, numbered_lines

INT = r"\d{1,18}"
NUMBERS = {"cells": 1, "times": 1, "columns": 1, "lane": 0, "region": 0}  # what they are where nothing is said
_HEAD = re.compile(rf"(\w+) %({NAME}) \{{$", re.ASCII)
_LIST = re.compile(r"(buffers|lives|slots)((?: \S+)*)$", re.ASCII)
_STATE = re.compile(rf"state ({INT})(?: ops=({INT}))? \{{$", re.ASCII)
_LAUNCH = re.compile(rf"({NAME}) block=({INT})((?: \w+={INT})*) \(([^()]*)\)$", re.ASCII)


def print_launches(launches: Launches) -> str:
    """The program's kind and target, its buffers, and its launches by the state that rows are in."""
    out = [f"{launches.program.kind} %{launches.program.target} {{"]
    lists = {"buffers": map(str, launches.buffers), "lives": (f"{a}..{b}" for a, b in launches.lives), "slots": launches.slots}
    out += ["  " + " ".join((name, *values)) for name, values in lists.items()]
    for state, (begin, end) in enumerate(launches.spans()):
        ops = f" ops={launches.ops[state]}" if state in launches.ops else ""
        out += [f"  state {state}{ops} {{", *(f"    {print_launch(step)}" for step in launches.steps[begin:end]), "  }"]
    return "\n".join([*out, "}", ""])


def print_launch(launch: Launch) -> str:
    said = "".join(f" {name}={value}" for name, usual in NUMBERS.items() if (value := getattr(launch, name)) != usual)
    bound = " ".join(f"{p}={symbol or '-'}" for p, symbol in zip(launch.kernel.parameters, launch.bind, strict=True))
    return f"{launch.kernel.name} block={launch.block}{said} ({bound})"


def parse_launches(text: str, program: Program, kernels: Mapping[str, Kernel]) -> Launches:
    """Reads the printer's form, for the program it is of and the kernels by name."""
    lines = iter(numbered_lines(text))
    k, head = next(lines, (1, ""))
    found = _HEAD.match(head)
    if found is None or (found[1], found[2]) != (program.kind, program.target):
        name = f"{program.kind} %{program.target}"
        raise InvalidIR(f"line {k}: not the launches of {name}", f"begin with `{name} {{`")
    out = Launches(program, begins=[])
    for k, line in lines:
        if (m := _LIST.match(line)) is not None and not out.begins:
            _take_list(out, m[1], m[2].split(), k)
        elif (m := _STATE.match(line)) is not None and int(m[1]) == out.states:
            out.begins.append(len(out.steps))
            if m[2] is not None:
                out.ops[int(m[1])] = int(m[2])
            _take_launches(out, lines, kernels, k)
        elif line == "}" and out.begins:
            if (more := next(lines, None)) is not None:
                raise InvalidIR(f"line {more[0]}: text after the launches", "end them with `}`")
            return out
        else:
            raise InvalidIR(f"line {k}: cannot read {line[:80]!r}", "write buffers, lives and slots, then `state N {` in order")
    raise InvalidIR("the launches are not closed", "end them with `}`")


def _take_list(out: Launches, name: str, values: list[str], k: int) -> None:
    try:
        if name == "buffers":
            out.buffers = [int(v) for v in values]
        elif name == "lives":
            out.lives = [[int(end) for end in v.split("..")] for v in values]
        else:
            out.slots = values
    except ValueError as error:
        raise InvalidIR(f"line {k}: cannot read {name}", "write `buffers N N`, `lives A..B A..B`, `slots SYMBOL`") from error


def _take_launches(out: Launches, lines: Iterator[tuple[int, str]], kernels: Mapping[str, Kernel], begin: int) -> None:
    for k, line in lines:
        if line == "}":
            return
        out.steps.append(parse_launch(line, k, kernels))
    raise InvalidIR(f"line {begin}: the state is not closed", "end it with `}`")


def parse_launch(line: str, k: int, kernels: Mapping[str, Kernel]) -> Launch:
    """What `print_launch` wrote; it stood in line k."""
    m = _LAUNCH.match(line)
    if m is None:
        raise InvalidIR(f"line {k}: cannot read {line[:80]!r}", "write `kernel block=N (parameter=symbol ...)`")
    kernel = kernels.get(m[1])
    if kernel is None:
        raise InvalidIR(f"line {k}: there is no kernel {m[1]}", "name one that is filed beside the launches")
    said = dict(part.split("=") for part in m[3].split())
    bound = [part.partition("=")[::2] for part in m[4].split()]
    if not said.keys() <= NUMBERS.keys() or tuple(p for p, _ in bound) != kernel.parameters:
        raise InvalidIR(f"line {k}: {m[1]} takes ({' '.join(kernel.parameters)})", "bind each of its parameters once, in their order")
    bind = tuple("" if symbol == "-" else symbol for _, symbol in bound)
    return Launch(kernel, bind, int(m[2]), **{name: int(value) for name, value in said.items()})
