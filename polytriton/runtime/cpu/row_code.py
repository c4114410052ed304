"""Row passes of fused.py as LLVM's own text: a vector of cells at a time, two rows on one window beside each other.

Numba's code of the same loops asks at every row whether what is written overlaps what is read, at every cell which sums are wanted, and
takes the last cells of a line one by one: most of the time where lines are short. Here all of it is decided before the first row. A line's
last cells come as a vector with some before them, which is taken for zeros but for these cells; where a line has less than a vector, each
cell comes alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from polytriton.runtime.cpu import loops
from polytriton.runtime.cpu.outside import HELD, doubles, floats, integers
from polytriton.runtime.cpu.row_passes import Cells, Pass, Table

ATTRIBUTES = 1001  # a number that no other text gives to attributes of its own
REALS = {"float32": "float", "float64": "double"}
SIZES = {"float": 4, "double": 8, "i64": 8}
KINDS = {"T": "ptr", "I": "ptr", "D": "ptr", "i": "i64", "b": "i64"}


class Code:
    """LLVM's text of a function while it is written: of a pass, for coefficients of a type, with the choices that are asked for."""

    def __init__(self, what: Pass, real: str, lanes: int, asked: frozenset[str]) -> None:
        self.what, self.real, self.lanes, self.asked = what, real, lanes, asked
        self.lines: list[str] = []
        self.count = 0
        self.named: dict[str, str] = {}  # values that are spoken of before they are there
        self.mask = ""  # which cells of a vector are taken, where not all are
        self.sums = [name for name, choice in what.sums.items() if not choice or choice in asked]

    # ---- instructions -------------------------------------------------------------------------------------

    def put(self, *lines: str) -> None:
        self.lines += lines

    def fresh(self, text: str) -> str:
        self.count += 1
        self.put(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def vector(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def zero(self) -> str:
        return "0.0" if self.lanes == 1 else "zeroinitializer"

    def call(self, name: str, *given: str) -> str:
        kind = "f64" if self.lanes == 1 else f"v{self.lanes}f64"
        return self.fresh(f"call {self.vector('double')} @llvm.{name}.{kind}({', '.join(given)})")

    def double(self, value: str, table: str = "") -> str:
        """In float64."""
        if self.real == "double" or (table and self.what.tables[table].real == "double"):
            return value
        return self.fresh(f"fpext {self.vector('float')} {value} to {self.vector('double')}")

    def compare(self, how: str, value: str) -> str:
        """With zero."""
        return self.fresh(f"fcmp {how} {self.vector(self.real)} {value}, {self.zero()}")

    def where(self, mask: str, yes: str, no: str = "", real: str = "") -> str:
        kind = self.vector(real or self.real)
        return self.fresh(f"select {self.vector('i1')} {mask}, {kind} {yes}, {kind} {no or self.zero()}")

    def magnitude(self, value: str) -> str:
        return self.call("fabs", f"{self.vector('double')} {value}")

    def total(self, value: str) -> str:
        """The sum of a vector's values, half by half."""
        width = self.lanes
        while width > 1:
            kind, width = f"<{width} x double>", width // 2
            low, high = (", ".join(f"i32 {k}" for k in range(a, a + width)) for a in (0, width))
            parts = [self.fresh(f"shufflevector {kind} {value}, {kind} poison, <{width} x i32> <{some}>") for some in (low, high)]
            value = self.fresh(f"fadd <{width} x double> {parts[0]}, {parts[1]}")
        return value if self.lanes == 1 else self.fresh(f"extractelement <1 x double> {value}, i32 0")

    def place(self, base: str, step: str, real: str = "") -> str:
        return self.fresh(f"getelementptr {real or self.real}, ptr {base}, i64 {step}")

    def read(self, base: str, at: str, real: str = "") -> str:
        kind = real or self.real
        value = self.fresh(f"load {self.vector(kind)}, ptr {self.place(base, at, real=kind)}, align {SIZES[kind]}")
        return self.where(self.mask, value, real=kind) if self.mask else value

    def write(self, base: str, at: str, value: str) -> None:
        kind, to = self.vector(self.real), self.place(base, at)
        if self.mask:
            value = self.where(self.mask, value, self.fresh(f"load {kind}, ptr {to}, align {SIZES[self.real]}"))
        self.put(f"  store {kind} {value}, ptr {to}, align {SIZES[self.real]}")

    def number(self, name: str, r: str) -> str:
        """A row's whole number: of an array, or of a column of `lines`; a parameter's where that is one."""
        array, _, column = name.partition(".")
        if KINDS[self.what.kinds[self.what.parameters.index(array)][0]] == "i64":
            return f"%{array}"
        at = self.fresh(f"add i64 {self.fresh(f'mul i64 {r}, 4')}, {column}") if column else r
        return self.fresh(f"load i64, ptr {self.place(f'%{array}', at, real='i64')}, align 8")

    # ---- rows ---------------------------------------------------------------------------------------------

    def function(self, name: str) -> str:
        self.put(f"define void @{name}({_parameters(self.what)}) #{ATTRIBUTES} {{", "entry:", "  %size = mul i64 %height, %line")
        self.put(f"  %over = urem i64 %line, {self.lanes}", "  %ragged = icmp ne i64 %over, 0", f"  %last = sub i64 %line, {self.lanes}")
        if self.lanes > 1:
            self.put(f"  %taken = sub i64 {self.lanes}, %over", f"  %one = insertelement {self.vector('i64')} poison, i64 %taken, i32 0")
            self.put(f"  %all = shufflevector {self.vector('i64')} %one, {self.vector('i64')} poison, {self.vector('i32')} zeroinitializer")
            self.put(f"  %mask = icmp uge {self.vector('i64')} <{', '.join(f'i64 {k}' for k in range(self.lanes))}>, %all")
        self.put("  %some = icmp sgt i64 %line, 0", "  %lines_there = select i1 %some, i64 %height, i64 0", "  br label %row")
        self.put("row:", "  %r = phi i64 [ 0, %entry ], [ %after1, %done1 ], [ %after2, %done2 ]")
        self.put("  %there = icmp slt i64 %r, %rows", "  br i1 %there, label %first, label %end", "end:", "  ret void", "first:")
        self.put("  %next = add i64 %r, 1", "  %another = icmp slt i64 %next, %rows", "  br i1 %another, label %look, label %begin1")
        self.put("look:")
        same = "true"
        for name in self.what.alike:
            equal = self.fresh(f"icmp eq i64 {self.number(name, '%r')}, {self.number(name, '%next')}")
            same = self.fresh(f"and i1 {same}, {equal}")
        self.put(f"  br i1 {same}, label %begin2, label %begin1")
        for rows in (2, 1):
            self._rows(rows)
        self.put("}")
        return re.sub(r"%[\w.]+", lambda found: self.named.get(found[0], found[0]), "\n".join(self.lines))

    def _rows(self, rows: int) -> None:
        """So many rows from %r on: line by line, and what is left of a line after its vectors."""
        what, tag = self.what, str(rows)
        tables = {name: table for name, table in what.tables.items() if name not in what.choices or name in self.asked}
        self.put(f"begin{tag}:")
        index = ["%r", "%next"][:rows]
        places = {name: self.place(f"%{name}", self.number(t.begin, "%r"), real=t.real) for name, t in tables.items()}
        pitches = {name: self.number(t.pitch, "%r") for name, t in tables.items()}
        own = [self.fresh(f"mul i64 {r}, %size") for r in index]
        begins = [self.place("%m", self.number("lines.2", r) if what.moved else at) for r, at in zip(index, own, strict=True)]
        ends = [self.place("%out", at) for at in own] if what.moved else []
        sums = [(k, name) for k in range(rows) for name in self.sums]
        kind = self.vector("double")

        def phi(label: str, *ways: tuple[str, dict[tuple[int, str], str]]) -> dict[tuple[int, str], str]:
            found = {s: f"%{label}{tag}.{s[0]}.{s[1]}" for s in sums}
            for s, to in found.items():
                self.put(f"  {to} = phi {kind} " + ", ".join(f"[ {values[s]}, %{way}{tag} ]" for way, values in ways))
            return found

        nothing, on = dict.fromkeys(sums, self.zero()), {s: f"%on{tag}.{s[0]}.{s[1]}" for s in sums}
        self.put(f"  br label %line{tag}", f"line{tag}:", f"  %i{tag} = phi i64 [ 0, %begin{tag} ], [ %in{tag}, %on{tag} ]")
        held = phi("line", ("begin", nothing), ("on", on))
        self.put(f"  %again{tag} = icmp slt i64 %i{tag}, %lines_there", f"  br i1 %again{tag}, label %cells{tag}, label %done{tag}")
        self.put(f"cells{tag}:")
        apart = self.fresh(f"mul i64 %i{tag}, %line")
        lines = {
            name: self.place(place, self.fresh(f"mul i64 %i{tag}, {pitches[name]}"), real=tables[name].real)
            for name, place in places.items()
        }
        mine, to = ([self.place(p, apart) for p in some] for some in (begins, ends))
        some = {s: f"%some{tag}.{s[0]}.{s[1]}" for s in sums}
        self.put(f"  br label %some{tag}", f"some{tag}:", f"  %q{tag} = phi i64 [ 0, %cells{tag} ], [ %qn{tag}, %some{tag} ]")
        now = phi("vector", ("cells", held), ("some", some))
        self._vector(tables, lines, mine, to, f"%q{tag}", now, some)
        self.put(f"  %qn{tag} = add i64 %q{tag}, {self.lanes}", f"  %more{tag} = icmp sle i64 %qn{tag}, %last")
        self.put(f"  br i1 %more{tag}, label %some{tag}, label %rest{tag}", f"rest{tag}:")
        left = {s: f"%left{tag}.{s[0]}.{s[1]}" for s in sums}
        if self.lanes > 1:
            self.put(f"  br i1 %ragged, label %few{tag}, label %on{tag}", f"few{tag}:")
            self.mask = "%mask"
            self._vector(tables, lines, mine, to, "%last", some, left)
            self.mask = ""
            self.put(f"  br label %on{tag}", f"on{tag}:")
            phi("on", ("rest", some), ("few", left))
        else:
            self.put(f"  br label %on{tag}", f"on{tag}:")
            phi("on", ("rest", some))
        self.put(f"  %in{tag} = add i64 %i{tag}, 1", f"  br label %line{tag}", f"done{tag}:")
        for k, r in enumerate(index):
            for name in what.sums:
                value = self.total(held[k, name]) if name in self.sums else "0.0"
                self.put(f"  store double {value}, ptr {self.place(f'%{name}', r, real='double')}, align 8")
        self.put(f"  %after{tag} = add i64 %r, {rows}", "  br label %row")

    def _vector(
        self, tables: dict[str, Table], lines: dict[str, str], mine: Sequence[str], to: Sequence[str], q: str,
        held: dict[tuple[int, str], str], found: dict[tuple[int, str], str],
    ) -> None:  # fmt: skip
        """The cells from q on of each row join its sums, which other instructions know by the names `found`."""
        cells = Cells(self, {name: self.read(lines[name], q, table.real) for name, table in tables.items()})
        for k, m in enumerate(mine):
            cells.sums = {name: held[k, name] for name in self.sums}
            made = self.what.row(cells, self.read(m, q))
            if to:
                self.write(to[k], q, made)
            self.named.update({found[k, name]: value for name, value in cells.sums.items()})


def _parameters(what: Pass) -> str:
    return ", ".join(["i64 %rows", *(f"{KINDS[kind[0]]} %{name}" for name, kind in zip(what.parameters, what.kinds, strict=True))])


def text_of_pass(what: Pass, name: str, real: str, lanes: int = 0) -> str:
    """LLVM's text of @NAME(rows, parameters...), with null for arrays that are absent; vectors have so many cells, or as this machine's."""
    wide = "+avx512f" in loops.features()
    lanes, parameters = lanes or (8 if wide else 4), _parameters(what)
    found, cases, ways = list[str](), list[str](), list[str]()
    for tag, kind in (("f64", "double"), (f"v{lanes}f64", f"<{lanes} x double>")):
        found += [f"declare {kind} @llvm.fabs.{tag}({kind})", f"declare {kind} @llvm.fmuladd.{tag}({', '.join([kind] * 3)})"]
    for bits in range(1 << len(what.choices)):
        asked = frozenset(c for k, c in enumerate(what.choices) if bits >> k & 1)
        for few, width in enumerate((lanes, 1)):
            number = 2 * bits + few
            found.append(Code(what, real, width, asked).function(f"{name}_{number}"))
            cases.append(f"i64 {number}, label %way{number}")
            ways.append(f"way{number}:\n  call void @{name}_{number}({parameters})\n  ret void")
    body = [
        f"define void @{name}({parameters}) #{ATTRIBUTES} {{",
        f"  %narrow = icmp slt i64 %line, {lanes}",
        "  %w = zext i1 %narrow to i64",
    ]
    chosen = "%w"
    for k, choice in enumerate(what.choices):
        kind = KINDS[what.kinds[what.parameters.index(choice)][0]]
        body.append(f"  %is{k} = icmp ne {kind} %{choice}, {'null' if kind == 'ptr' else '0'}")
        body += [f"  %bit{k} = select i1 %is{k}, i64 {2 << k}, i64 0", f"  %w{k} = or i64 {chosen}, %bit{k}"]
        chosen = f"%w{k}"
    body += [f"  switch i64 {chosen}, label %way0 [ {' '.join(cases)} ]", *ways, "}"]
    more = ' "min-legal-vector-width"="512" "prefer-vector-width"="512"' if wide else ""
    return "\n".join([*found, *body, f"attributes #{ATTRIBUTES} = {{ nounwind{more} }}"])


def text_of_loop(what: Pass, name: str, version: str, lanes: int = 0) -> tuple[str, str, str]:
    """The pass as a loop: its code, the name of what is to be called, and that one's parameters as Numba passes them."""
    parameters, given, body = ["ptr %ret", "ptr %exc"], list[str](), list[str]()
    for own, kind in zip(what.parameters, what.kinds, strict=True):
        if kind == "i":
            parameters.append(f"i64 %{own}")
            given.append(f"i64 %{own}")
        elif kind == "b":
            parameters.append(f"i8 %{own}")
            body.append(f"  %{own}.is = zext i8 %{own} to i64")
            given.append(f"i64 %{own}.is")
        else:
            parameters += [f"{k} %{own}.{part}" for k, part in loops.fields(int(kind[1:] or 1))]
            body += [f"  %{own}.any = icmp sgt i64 %{own}.shape0, 0", f"  %{own} = select i1 %{own}.any, ptr %{own}.data, ptr null"]
            given.append(f"ptr %{own}")
    head = ", ".join(parameters)
    code = [text_of_pass(what, f"{name}_rows", REALS[version], lanes), f"define i32 @{name}_work({head}) {{", *body]
    code += [f"  call void @{name}_rows(i64 %base.shape0, {', '.join(given)})", "  ret i32 0", "}"]
    return "\n".join(code), f"{name}_work", head


def arrays_at(what: Pass, rows: int, given: Sequence[int]) -> list[np.ndarray | int]:
    """A routine's arguments as the loop's: of so many rows, in memory that holds as many values as are read."""
    found: list[np.ndarray | int] = []
    for kind, value in zip(what.kinds, given, strict=True):
        if KINDS[kind[0]] == "i64":
            found.append(value)
        elif kind[0] == "I":
            columns = (rows, 4) if kind == "I2" else (rows,)
            found.append(integers(value, int(np.prod(columns))).reshape(columns))
        else:
            found.append((doubles if kind == "D" else floats)(value, HELD))
    return found


def text_of_routine(what: Pass, routine: str, name: str) -> str:
    """The pass of float32 as a routine that is given the rows' number, then addresses and numbers."""
    count = len(what.parameters) + 1
    body, given = list[str](), ["i64 %a0"]
    for k, kind in enumerate(what.kinds, 1):
        if KINDS[kind[0]] == "ptr":
            body.append(f"  %p{k} = inttoptr i64 %a{k} to ptr")
        given.append(f"ptr %p{k}" if KINDS[kind[0]] == "ptr" else f"i64 %a{k}")
    head = ", ".join(f"i64 %a{k}" for k in range(count))
    code = [text_of_pass(what, f"{name}_{routine}", "float"), f"define void @{routine}({head}) {{", *body]
    return "\n".join([*code, f"  call void @{name}_{routine}({', '.join(given)})", "  ret void", "}"])
