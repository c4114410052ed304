"""`polytriton supports`: what a program that drives verifiers asks before it uses one (VNN-LIB 2.0, command-line interface)."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Annotated

from polytriton.commands.options import option
from polytriton.errors import UsageError


@dataclass(frozen=True)
class Capabilities:
    """One field a capability of the standard."""

    onnx_opset_versions: Annotated[bool, option("--onnx-opset-versions", help="The oldest and the newest opset.")] = False
    onnx_element_types: Annotated[bool, option("--onnx-element-types", help="Element types of inputs and outputs.")] = False
    onnx_operators: Annotated[bool, option("--onnx-operators", help="ONNX operators.")] = False
    vnnlib_versions: Annotated[bool, option("--vnnlib-versions", help="The oldest and the newest version of VNN-LIB.")] = False
    hidden_node_theories: Annotated[bool, option("--hidden-node-theories", help="NH: no constraints on hidden nodes.")] = False
    multiple_input_output_theories: Annotated[
        bool, option("--multiple-input-output-theories", help="SIO: networks of one input and one output.")
    ] = False
    multiple_network_theories: Annotated[
        bool, option("--multiple-network-theories", help="SNET, MENET, MINET, MNET: one network, or several, alike or not.")
    ] = False
    multiple_node_comparison_theories: Annotated[
        bool, option("--multiple-node-comparison-theories", help="MNC: assertions may relate inputs and outputs.")
    ] = False
    arithmetic_complexity_theories: Annotated[
        bool, option("--arithmetic-complexity-theories", help="BND, OUTC, LIN: up to linear arithmetic.")
    ] = False
    optimised_disjunctive_reasoning: Annotated[
        bool, option("--optimised-disjunctive-reasoning", help="Whether disjunctions are more than expanded: false.")
    ] = False
    serialise_assignments: Annotated[
        bool, option("--serialise-assignments", help="Whether verify can write counterexamples as TensorProto files.")
    ] = False


def supports(
    *, capabilities: Capabilities, json_: Annotated[bool, option("--json", help="As JSON: one list, or all as an object.")] = False
) -> int:
    """Say what kinds of networks and properties can be verified, one capability at a time, a word a line."""
    asked = [f.name for f in fields(capabilities) if getattr(capabilities, f.name)]
    if len(asked) != 1 and not (json_ and not asked):
        names = ", ".join(f"--{f.name.replace('_', '-')}" for f in fields(Capabilities))
        raise UsageError("which capability?" if not asked else "one capability at a time", f"give one of {names}; or --json alone for all")
    held = every_capability()
    if json_:
        print(json.dumps(held[asked[0]] if asked else held, indent=None if asked else 2))
    else:
        print("\n".join(held[asked[0]]))
    return 0


def every_capability() -> dict[str, list[str]]:
    """Every capability. Types are those whose arithmetic a proof covers; float32 is what --semantics is by default."""
    from polytriton.frontend.onnx import NEWEST_OPSET, OLDEST_OPSET, operators

    return {
        "onnx_opset_versions": [str(OLDEST_OPSET), str(NEWEST_OPSET)],
        "onnx_element_types": ["real", "float32", "float64"],
        "onnx_operators": [name for name, _ in operators()],
        "vnnlib_versions": ["1.0", "2.0"],
        "hidden_node_theories": ["NH"],
        "multiple_input_output_theories": ["SIO"],
        "multiple_network_theories": ["SNET", "MENET", "MINET", "MNET"],
        "multiple_node_comparison_theories": ["SNC", "MNC"],
        "arithmetic_complexity_theories": ["BND", "OUTC", "LIN"],
        "optimised_disjunctive_reasoning": ["false"],
        "serialise_assignments": ["true"],
    }
