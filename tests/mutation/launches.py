# ruff: noqa: E501  one row a mutant
"""Faults in what an artifact brings to a run: launches that break their rules, kernels that are others than their names say, code of others."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

CHECK, RULES = "ir/launch_check.py", "tests/ir/test_launches.py"
IR, ORDER, SCRIPTS, LISTED = "ir/script.py", "ir/script_check.py", "tests/ir/test_script.py", "tests/kernels/test_script_runs.py"
TEXT, STOCK, TAKEN = "ir/launch_text.py", "kernels/stock.py", "tests/kernels/test_stock.py"
CATALOGUE, READS = "kernels/catalogue.py", "tests/kernels/test_reads.py"
KNOWN, WHOSE, FILES, READ = "known.py", "tests/artifact/test_known.py", "kernels/files.py", "tests/artifact/test_artifact_kernels.py"
NAMED, AHEAD = "tests/artifact/test_kernel_texts.py", "tests/kernels/test_ahead.py"

LAUNCHES: tuple[Mutant, ...] = (
    m("launches: buffers are read unwritten", CHECK, "if symbol not in written | writes(step):", "if False:", RULES),
    m("launches: what a query is given is given a bound", CHECK, 'if first == 0 and launches.program.kind != "bound"', "if first == 0", RULES),
    m("launches: buffers outlive their lives", CHECK, "if not first <= k <= last:", "if not first <= k:", RULES),
    m("launches: rows of another state", CHECK, "if int(name) != state and not (moved", "if int(name) > state + 1 and not (moved", RULES),
    m("launches: rows move at any time", CHECK, "not (moved and int(name) == state + 1)", "int(name) != state + 1", RULES),
    m("launches: a state may end without a move", CHECK, "if moved == (state + 1 == launches.states):", "if False:", RULES),
    m("launches: lanes may share scalars", CHECK, "if symbol in written or kind in SCALARS:", "if symbol in written:", RULES),
    m("launches: regions may be torn", CHECK, "if step.region in seen:", "if False:", RULES),
    m("launches: parameters in any order", TEXT, "tuple(p for p, _ in bound) != kernel.parameters", "len(bound) != len(kernel.parameters)", RULES),
    m("launches: states in any order", TEXT, "and int(m[1]) == out.states:", ":", RULES),
    m("launches: nobody checks them", "kernels/network.py", "            check_launches(launches)\n", "", RULES),
    m("scripts: nobody checks them", "kernels/script.py", "        check_script(self.script, self.net, programs)\n", "", SCRIPTS),
    m("scripts: rows come before their number", ORDER, "if due[:1] != [entry.verb]:", "if False:", SCRIPTS),
    m("scripts: rows go ahead of nothing", ORDER, 'if due[:1] != ["first"] or entries[k - 1].verb != "wait":', "if False:", SCRIPTS),
    m("scripts: a layer stays open", ORDER, "        elif due:\n", "        elif False:\n", SCRIPTS),
    m("scripts: another node is closed", ORDER, 'if entry.verb == "close" and set(entry.writes) != {f"low:{target}", f"high:{target}"}:', "if False:", SCRIPTS),
    m("scripts: what nobody wrote is read", ORDER, "        for symbol in entry.reads:\n", "        for symbol in ():\n", SCRIPTS),
    m("scripts: a program's tables need not be there", ORDER, "for symbol in programs.get(target, [f\"the program of %{target}\"]):", "for symbol in ():", SCRIPTS),
    m("scripts: a query's tables need not be there", ORDER, "        for symbol in programs[name]:\n", "        for symbol in ():\n", SCRIPTS),
    m("scripts: brought boxes have the query's tables alone", ORDER, '"tables": list(programs)', '"tables": [""]', SCRIPTS),
    m("scripts: what is known need not be measured", ORDER, 'entry.verb == "known" and (step is None or step.function != "measure_boxes")', "False", SCRIPTS),
    m("scripts: lanes may write what the other reads", CHECK, "written = set().union(*(made for step, made in zip(steps, written_by, strict=True) if step.region == region))", "written = set[str]()", SCRIPTS),
    m("scripts: sizes outlive their boxes", IR, 'self.symbols -= {f"{kind}:{name}" for name in changed for kind in ("biggest", "total")}', "self.symbols -= set()", SCRIPTS),
    m("scripts: another layer's sums are taken", IR, "SUMS if made & {f\"low:{name}\" for name in changed} else ()", "()", SCRIPTS),
    m("scripts: a store that the IR does not know", IR, '"find_open": "at_ptr found_ptr"', '"find_open": "at_ptr"', SCRIPTS),
    m("scripts: a table is made in exact arithmetic's way", "kernels/script.py", "self.emulate, real=self.how.real)\n        of =", "self.emulate, real=True)\n        of =", SCRIPTS, LISTED),
    m("scripts: both signs are one", "kernels/script.py", 'cells.open_rows(node, verb == "second", verb', 'cells.open_rows(node, False, verb', LISTED),
    m("scripts: a node called by a number has no tables", IR, "kind not in (*CONSTANTS, *ROW_ARRAYS)", "not name.isdigit() and kind not in CONSTANTS", LISTED, "tests/kernels/test_kernel_runs.py::test_names_that_are_numbers_change_nothing"),
    m("binding: a node called by a number is a row array", "runtime/gpu/binding.py", "if kind in ROW_ARRAYS:", "if name.isdigit():", "tests/kernels/test_kernel_runs.py::test_names_that_are_numbers_change_nothing"),
    m("names: warps do not matter", CATALOGUE, "tuple(types.items()), warps, stages)", "tuple(types.items()), stages)", NAMED),
    m("names: constants do not matter", CATALOGUE, "constants, tuple(types.items()), warps", "tuple(types.items()), warps", NAMED),
    m("names: types do not matter", CATALOGUE, "constants, tuple(types.items()), warps", "constants, warps", NAMED),
    m("names: sources do not matter", CATALOGUE, "made_of = (closure_digest(*place(family)), constants", "made_of = (constants", NAMED),
    m("closure: what is called does not matter", "kernels/closure.py", "            take(where, read)\n", "            pass\n", "tests/kernels/test_aot_ledger.py"),
    m("catalogue: a pointer too many", CATALOGUE, '_when("w", lambda c: c.SLICE)', '_when("w", lambda c: True)', READS),
    m("catalogue: a pointer too few", CATALOGUE, '_when("own_floor", lambda c: c.PENDING)', '_when("own_floor", lambda c: False)', READS),
    m("catalogue: positions that do not move are read", CATALOGUE, '_when("row_w", lambda c: c.RW)}', '_when("row_w", lambda c: True)}', READS),
    m("stock: launches of another plan", STOCK, "if self.filed is None or not self.programs or key", "if self.filed is None or key", TAKEN),
    m("stock: launches without lanes", "runtime/gpu/triton_backend.py", "if self.default else None", "if True else None", TAKEN),
    m("stock: machine code of another kernel", STOCK, " and self.filed.kernels.get(kernel.name) == kernel", "", "tests/kernels/test_filed_code.py", TAKEN),
    m("stock: machine code of another release", "ir/launches.py", "target in self.code and triton == self.triton", "target in self.code", "tests/kernels/test_filed_code.py"),
    m("prepare: patient tries compile as they launch", "prove/prepare.py", "*decider.tries(patient=False), *decider.tries(patient=True)", "*decider.tries(patient=False)", AHEAD),
    m("prepare: a search compiles as it launches", "prove/prepare.py", "if p.kind == \"query\" or inner]", "if False]", AHEAD),
    m("prepare: the clock runs meanwhile", "prove/prover.py", "        self.prepare()\n        decision =", "        decision =", AHEAD),
    m("stock: code that was compiled for another GPU", STOCK, "COMPILED.get(self.target, {}).get(kernel.name)", "next((c[kernel.name] for c in COMPILED.values() if kernel.name in c), None)", AHEAD),
    m("search: a GPU's chain stays there", "prove/strategy.py", "else decider.on_host", "else decider", "tests/prove/test_device_search.py"),
    m("store: whoever writes to the folder", "kernels/store.py", "and not is_own(folder)", "and False", "tests/kernels/test_ahead.py"),
    m("load: pointers of a tuple are turned around", "kernels/load.py", "else tuple(map(given, pointer))", "else tuple(map(given, pointer[::-1]))", "tests/kernels/test_load.py"),
    m("code: tensors begin anywhere", "kernels/load.py", "if any(t.data_ptr() % 16 for t in tensors):", "if False:", "tests/kernels/test_filed_code.py"),
    m("files: kernels are not what their names say", FILES, "if (kernel.name, kernel.parameters, kernel.types) != (name,", "if () and (name,", READ),
    m("files: kernels of another library", FILES, "if index.library != library_digest():", "if False:", READ),
    m("known: everything is", KNOWN, "    return None\n\n\ndef compare_kernels", "    return \"\"\n\n\ndef compare_kernels", WHOSE),
    m("known: whatever the library", KNOWN, "[library_digest(), str(", "[str(", WHOSE),
    m("known: a comparison that finds is passed", KNOWN, "    if odd:\n", "    if False:\n", WHOSE),
    m("known: machine code with its launches", KNOWN, "if not filed.code or mark is not None:", "if True:", WHOSE),
    m("known: launches from elsewhere are taken as they are", KNOWN, "    if mark is None:\n", "    if False:\n", WHOSE),
    m("known: trust is not told", KNOWN, "trusted=bool(filed.code) and mark == TRUSTED", "trusted=False", WHOSE),
    m("known: what is trusted is one's own", KNOWN, "TRUSTED if trusted else \"\"", "\"\"", WHOSE),
    m("known: what was compiled here is trusted", KNOWN, "if not trusted or not mark.exists():", "if True:", WHOSE),
    m("known: the network does not matter", KNOWN, "if name in (NET, PLAN, WEIGHTS) or name", "if name", WHOSE),
)
