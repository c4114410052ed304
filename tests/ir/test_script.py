"""Scripts of runs as text and back, what they list, and what their checker refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from polytriton.errors import InvalidIR
from polytriton.ir.net import Net
from polytriton.ir.script import WRITES, RunScript, ScriptEntry, changes
from polytriton.ir.script_check import check_script
from polytriton.ir.script_text import parse_script, print_script
from polytriton.kernels import network
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.script import DEPLOYMENTS
from polytriton.passes.pipeline import Compiled, compile_net
from tests.filecheck import filecheck
from tests.kernels.accesses import WRITTEN, accesses
from tests.kernels.test_kernel_runs import small
from tests.oracle.nets import toy_dense, toy_residual

pytest.importorskip("triton", reason="Triton is not installed")
KEY = "float32 gpu run once"


def lowered(compiled: Compiled, numerics: str = "float32") -> Emitter:
    emitter = Emitter()
    network.network_kernels(compiled, (numerics,), emitter=emitter)
    return emitter


NETS: dict[str, Callable[[], Net]] = {"dense": toy_dense, "residual": toy_residual, "pool": lambda: small(pool=True)}
COMPILED = {name: compile_net(net()) for name, net in NETS.items()}
MADE = {name: lowered(compiled) for name, compiled in COMPILED.items()}


@pytest.mark.parametrize("name", MADE)
def test_text_and_back(name: str) -> None:
    emitter = MADE[name]
    assert len(emitter.scripts) == len(DEPLOYMENTS)
    for script in emitter.scripts.values():
        text = print_script(script)
        assert parse_script(text, emitter.kernels) == script
        assert parse_script(re.sub("$", "  // a remark", text, flags=re.M), emitter.kernels) == script


def test_what_a_run_of_dense_layers_launches() -> None:
    filecheck(print_script(MADE["dense"].scripts[KEY]), """
        CHECK: run @toy_dense {
        CHECK-NEXT: interval {
        CHECK-NEXT: play forward_dense_{{.*}}(lo_ptr=low:x hi_ptr=high:x w_ptr=w:linear bias_ptr=b:linear centre_ptr=centre
        CHECK-NEXT: play measure_boxes_{{.*}} biggest_ptr=biggest:x total_ptr=total:x
        CHECK-NEXT: play affine_boxes_{{.*}}(centre_ptr=centre {{.*}} operand_ptr=biggest:x {{.*}} box_lo_ptr=low:linear
        CHECK-NEXT: play relu_boxes_{{.*}}(y_lo_ptr=low:linear {{.*}} box_lo_ptr=low:relu {{.*}} lo_ptr=lo:relu {{.*}} t_ptr=t:linear
        CHECK-NOT: wait
        CHECK-NOT: tell_boxes
        CHECK: refine {
        CHECK: affine_boxes_{{.*}} box_lo_ptr=low:linear_1 {{.*}} told_ptr=told:linear_1 blocks_ptr=open {{.*}} first_ptr=first:linear_1
        CHECK: known measure_boxes_{{.*}} biggest_ptr=biggest:linear_1 {{.*}} told_ptr=told:linear_1 blocks_ptr=open
        CHECK-NEXT: play floors_{{.*}} floor_ptr=floor:linear {{.*}} other_floor_ptr=underflow:x
        CHECK-NEXT: play box_tables_{{.*}} lo_ptr=lo:x
        CHECK-NEXT: play find_open_{{.*}} at_ptr=at found_ptr=found
        CHECK-NEXT: wait %linear_1
        CHECK-NEXT: ahead open_neurons_{{.*}} found_ptr=found room_ptr=room
        CHECK-NEXT: first open_neurons
        CHECK-NEXT: second open_neurons
        CHECK-NEXT: close close_neurons_{{.*}} box_lo_ptr=low:linear_1 box_hi_ptr=high:linear_1
        CHECK-NEXT: play relu_boxes_{{.*}}(y_lo_ptr=low:linear_1 {{.*}} y_total_ptr=total:linear_1 told_ptr=told_after:linear_1
        CHECK-NOT: tell_boxes
        CHECK: tables {
        CHECK-NOT: affine_boxes
        CHECK: play charge_table_{{.*}} t_ptr=first:linear_1
        CHECK: play charge_table_{{.*}} t_ptr=t:linear_2
        CHECK: query {
        CHECK-NEXT: forms open_forms_{{.*}} box_lo_ptr=low:linear_2
        CHECK-NEXT: gaps open_forms
        CHECK-NEXT: }
    """)  # fmt: skip


def test_what_has_no_kernel_is_the_hosts() -> None:
    """A max pool's box and winners; its operand's neurons are all bounded, so that nobody waits."""
    text = print_script(MADE["pool"].scripts[KEY])
    filecheck(text, """
        CHECK: refine {
        CHECK-NOT: wait %conv_1
        CHECK: every %conv_1
        CHECK-NEXT: first open_neurons
        CHECK: host low:maxpool high:maxpool = low:conv_1 high:conv_1
        CHECK: host winner:maxpool =
    """)  # fmt: skip
    assert "host" not in print_script(MADE["residual"].scripts[KEY])


def test_float16_takes_more_of_the_host() -> None:
    """What a conversion flushes depends on every operand: the sums are a kernel's, the box is not."""
    filecheck(print_script(MADE["dense"].scripts["float32 gpu run flushing"]), """
        CHECK: play forward_dense
        CHECK-NEXT: host low:linear high:linear own:linear = low:x high:x centre spread magnitude:linear
    """)  # fmt: skip


def test_scripts_of_one_network_differ_where_they_should() -> None:
    texts = {print_script(s) for s in MADE["residual"].scripts.values()}
    assert len(texts) == len(DEPLOYMENTS)
    assert lowered(COMPILED["residual"]).scripts == MADE["residual"].scripts


def test_what_kernels_store_is_what_the_ir_says() -> None:
    """Of rows the script says nothing. A pointer that a kernel hands on counts as read and written."""
    launched = [e for made in MADE.values() for s in made.scripts.values() for entries in s.sections.values() for e in entries if e.launch]
    assert {e.launch.function for e in launched if e.launch} == WRITES.keys()
    for entry in launched:
        step = entry.launch
        assert step is not None
        found = {s: accesses(step.kernel)[p] for p, s in zip(step.kernel.parameters, step.bind, strict=True) if changes(s)}
        assert {s for s, how in found.items() if how == {WRITTEN}} <= set(entry.writes), step.function
        assert set(entry.writes) <= {s for s, how in found.items() if WRITTEN in how}, step.function


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("^run", "ran", "not the script of a run"),
        ("^  refine", "  interval", "write `interval {`"),
        ("play", "replay", "write `host`"),
        (r"(play relu_boxes)_[0-9a-f]+", r"\1_0000000000", "there is no kernel relu_boxes_0000000000"),
        (" y_hi_ptr=high:linear", "", "bind each of its parameters once"),
        (r"  }\n}\n$", "}\n", "the last section is not closed"),
    ],
)
def test_text_that_cannot_be_read(old: str, new: str, said: str) -> None:
    text, times = re.subn(old, new, print_script(MADE["dense"].scripts[KEY]), count=1, flags=re.M if old.startswith("^") else 0)
    assert times == 1
    with pytest.raises(InvalidIR, match=re.escape(said)):
        parse_script(text, MADE["dense"].kernels)


Change = Callable[[list[ScriptEntry]], object]


def at(entries: list[ScriptEntry], start: str) -> int:
    """The entry whose verb and family these are."""
    verb, _, family = start.partition(" ")
    return next(k for k, e in enumerate(entries) if e.verb == verb and (e.launch.function if e.launch and family else "") == family)


def swap(start: str, by: int) -> Change:
    def change(entries: list[ScriptEntry]) -> None:
        k = at(entries, start)
        entries.insert(k + by, entries.pop(k))

    return change


def drop(start: str) -> Change:
    return lambda entries: entries.pop(at(entries, start))


def rebind(start: str, old: str, new: str) -> Change:
    def change(entries: list[ScriptEntry]) -> None:
        k = next(k for k, e in enumerate(entries) if e.launch is not None and old in e.launch.bind and at([e, *entries], start) == 0)
        step = entries[k].launch
        assert step is not None
        entries[k] = replace(entries[k], launch=replace(step, bind=tuple(new if s == old else s for s in step.bind)))

    return change


def lanes(*numbers: int) -> Change:
    """The first launches in one region, on these lanes."""

    def change(entries: list[ScriptEntry]) -> None:
        for k, lane in enumerate(numbers):
            step = entries[k].launch
            assert step is not None
            entries[k] = replace(entries[k], launch=replace(step, lane=lane, region=1))

    return change


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("refine", drop("wait"), "goes ahead of no wait"),
        ("refine", swap("first", -2), "whose number is not known"),
        ("refine", swap("ahead", -1), "goes ahead of no wait"),
        ("refine", swap("second", -1), "out of turn"),
        ("refine", drop("close"), "comes before %linear_1 is closed"),
        ("refine", drop("second"), "out of turn"),
        ("refine", rebind("close", "high:linear_1", "high:linear"), "closes another node than %linear_1"),
        ("refine", drop("play find_open"), "reads at before"),
        ("refine", rebind("play affine_boxes", "open", "at"), "reads open before"),
        ("refine", rebind("play affine_boxes", "first:linear_1", "first:linear"), "the program of %linear_1 reads first:linear_1 before"),
        ("refine", rebind("play relu_boxes", "t:linear", "t:linear_1"), "the program of %linear_1 reads t:linear before"),
        ("refine", lambda e: e.__setitem__(at(e, "known"), replace(e[0], verb="known")), "does not measure what is known"),
        ("tables", drop("play charge_table"), "nothing has written first:linear_1 for the program of %linear_1"),
        ("tables", lambda e: e.insert(0, ScriptEntry("wait", target="linear_1")), "entry 0 is `wait`"),
        ("interval", drop("play forward_dense"), "reads centre before"),
        ("interval", drop("play measure_boxes"), "reads biggest:x before"),
        ("interval", drop("play relu_boxes"), "reads low:relu before"),
        ("interval", drop("play floors"), "nothing has written floor:linear_2 for the query"),
        ("interval", rebind("play affine_boxes", "low:linear", "low:relu"), "reads low:linear before"),
        ("interval", lambda e: e.insert(2, ScriptEntry("wait", target="linear_1")), "entry 2 is `wait`"),
        ("interval", lambda e: e.insert(3, e[2]), "reads centre before"),
        ("query", rebind("forms", "low:linear_2", "low:linear_1"), "reads low:linear_1 before"),
        ("query", lambda e: e.__setitem__(0, replace(e[0], launch=replace(e[0].launch, block=0))), "a size below 1"),
        ("interval", lanes(0, 1, 1), "both lanes of region 1 touch"),
    ],
)
def test_what_breaks_a_rule_is_refused(section: str, change: Change, said: str) -> None:
    emitter, compiled = MADE["dense"], COMPILED["dense"]
    script = emitter.scripts[KEY]
    broken = RunScript(script.name, {name: list(entries) for name, entries in script.sections.items()})
    check_script(broken, compiled.net, emitter.programs.values())
    change(broken.sections[section])
    with pytest.raises(InvalidIR, match=said):
        check_script(broken, compiled.net, emitter.programs.values())


def test_sizes_are_of_the_box_as_it_is() -> None:
    """A narrowed box is measured anew, with its ReLU's; what lists no measuring in between is refused."""
    emitter, compiled = MADE["dense"], COMPILED["dense"]
    entries = list(emitter.scripts[KEY].sections["refine"])
    rebind("play relu_boxes", "total:linear_1", "total:linear")(entries)
    sections = {**emitter.scripts[KEY].sections, "refine": entries}
    with pytest.raises(InvalidIR, match="reads total:linear_1 before"):
        check_script(RunScript("toy_dense", sections), compiled.net, emitter.programs.values())


def test_nothing_is_filed_that_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytriton.kernels.script.ScriptLowering._table", lambda *_: None)
    with pytest.raises(InvalidIR, match="script of @toy_dense, interval"):
        network.network_kernels(COMPILED["dense"], ("float32",))
