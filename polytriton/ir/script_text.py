"""Scripts as text and back: `parse_script(print_script(x), kernels) == x`.

    run @digits {
      refine {
        play relu_boxes_1fe8b7e0d3 block=1 (a_lo_ptr=low:conv1 ... total_ptr=total:relu2)
        host low:pool3 high:pool3 = low:relu2 high:relu2
        wait %conv4
        ...
      }
      ...
    }
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from polytriton.errors import InvalidIR
from polytriton.ir.launch_text import parse_launch, print_launch
from polytriton.ir.launches import Kernel
from polytriton.ir.script import LAUNCHED, RunScript, ScriptEntry
from polytriton.ir.text import NAME, numbered_lines

_HEAD, _SECTION = re.compile(rf"run @({NAME}) \{{$", re.ASCII), re.compile(r"(\w+) \{$", re.ASCII)
_WAIT, _HOST = re.compile(rf"(wait|every) %({NAME})$", re.ASCII), re.compile(r"host ((?:\S+ )+)=((?: \S+)*)$", re.ASCII)


def print_script(script: RunScript) -> str:
    out = [f"run @{script.name} {{"]
    for name, entries in script.sections.items():
        out += [f"  {name} {{", *(f"    {print_entry(entry)}" for entry in entries), "  }"]
    return "\n".join([*out, "}", ""])


def print_entry(entry: ScriptEntry) -> str:
    if entry.launch is not None:
        return f"{entry.verb} {print_launch(entry.launch)}"
    return f"{entry.verb} %{entry.target}" if entry.target else " ".join(("host", *entry.made, "=", *entry.given))


def parse_script(text: str, kernels: Mapping[str, Kernel]) -> RunScript:
    """Reads the printer's form, for the kernels by name."""
    lines = list(numbered_lines(text))
    head = _HEAD.match(lines[0][1]) if lines else None
    if head is None or lines[-1][1] != "}":
        raise InvalidIR("this is not the script of a run", "begin with `run @NAME {` and end with `}`")
    out = RunScript(head[1])
    entries: list[ScriptEntry] | None = None
    for k, line in lines[1:-1]:
        if entries is None:
            section = _SECTION.match(line)
            if section is None or section[1] in out.sections:
                raise InvalidIR(f"line {k}: cannot read {line[:80]!r}", "write `interval {`, `refine {` and `query {`, once each")
            entries = out.sections[section[1]] = []
        elif line == "}":
            entries = None
        else:
            entries.append(_parse_entry(line, k, kernels))
    if entries is not None:
        raise InvalidIR("the last section is not closed", "end it with `}`")
    return out


def _parse_entry(line: str, k: int, kernels: Mapping[str, Kernel]) -> ScriptEntry:
    if (m := _WAIT.match(line)) is not None:
        return ScriptEntry(m[1], target=m[2])
    if (m := _HOST.match(line)) is not None:
        return ScriptEntry("host", made=tuple(m[1].split()), given=tuple(m[2].split()))
    verb, _, rest = line.partition(" ")
    if verb not in LAUNCHED:
        raise InvalidIR(f"line {k}: cannot read {line[:80]!r}", f"write `host`, `wait`, `every`, or a launch after {', '.join(LAUNCHED)}")
    return ScriptEntry(verb, parse_launch(rest, k, kernels))
