"""A module is traced, and boxes go through what was traced, node by node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, fx, nn

from polytriton.errors import PolytritonError, UnsupportedModel, UsageError
from polytriton.torch.rules import IN_PLACE, SHAPES, AffineRule, Box, Call, Rule, as_function, inplace, rule_of


@dataclass(frozen=True)
class Passed:
    """A node that depends on the input: its rule, what it read, and its box."""

    rule: Rule | None  # None for the input
    read: tuple[fx.Node, ...]
    box: Box


@dataclass(frozen=True)
class Walked:
    """Every node that depends on the input, in order; the last need not be the output."""

    nodes: dict[fx.Node, Passed]
    end: fx.Node

    @property
    def output(self) -> Box:
        return self.nodes[self.end].box


def walk_intervals(module: nn.Module, lo: Tensor, hi: Tensor) -> Walked:
    if lo.dtype not in (dtypes := {p.dtype for p in module.parameters()} or {lo.dtype}):
        raise UsageError(f"the boxes are {lo.dtype}, the module {', '.join(map(str, dtypes))}", "give boxes of the module's own type")
    if type(module).__module__.startswith("torch.nn.") and not isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
        module = nn.Sequential(module)  # a layer alone is traced as one
    graph = _graph(module)
    nodes: dict[fx.Node, Passed] = {}
    plain: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if not nodes:
                nodes[node] = Passed(None, (), Box(lo, hi))
            elif node.args:
                plain[node] = node.args[0]
            else:
                raise UsageError("the module takes several inputs", "bounds for training take modules of one tensor")
        elif node.op == "get_attr":
            plain[node] = _attribute(module, str(node.target))
        elif node.op == "output":
            end = node.args[0]
            if not isinstance(end, fx.Node) or end not in nodes:
                raise UnsupportedModel("the module's answer is not one tensor that depends on its input", "let it return the logits alone")
            return Walked(nodes, end)
        else:
            _take(module, node, nodes, plain)
    raise UnsupportedModel("the module answers nothing", "let it return a tensor")


def _graph(module: nn.Module) -> fx.Graph:
    if module._forward_hooks or module._forward_pre_hooks:
        raise UnsupportedModel(f"hooks of {type(module).__name__} may change what it computes", "take them off")
    try:
        return fx.Tracer().trace(module)
    except PolytritonError:
        raise
    except Exception as why:  # the module is foreign code
        raise UnsupportedModel(
            f"{type(module).__name__} cannot be traced: {str(why).splitlines()[0][:200] if str(why) else type(why).__name__}",
            "its path must not depend on its input's values: write it with tensor operations alone",
        ) from why


def _attribute(module: nn.Module, target: str) -> Any:
    value: Any = module
    for part in target.split("."):
        value = getattr(value, part)
    return value


def _take(module: nn.Module, node: fx.Node, nodes: dict[fx.Node, Passed], plain: dict[fx.Node, Any]) -> None:
    """Puts the node among those that depend on the input, or works out what it is."""

    def keep(n: fx.Node) -> Any:
        return n if n in nodes else plain[n]

    args, kwargs = fx.node.map_arg(node.args, keep), fx.node.map_arg(node.kwargs, keep)
    boxed = tuple(n for n in node.all_input_nodes if n in nodes)
    target: Any = node.target
    if node.op != "call_function":
        target = module.get_submodule(target) if node.op == "call_module" else getattr(Tensor, target)
    what = type(target).__name__ if isinstance(target, nn.Module) else getattr(target, "__name__", str(node.target))
    call = Call(f"{node.name} ({what})", target, args, kwargs, boxed)
    if not boxed or target in SHAPES or (target is getattr and args[1] in ("shape", "ndim", "dtype", "device")):
        plain[node] = call.value(*(nodes[n].box.lo for n in boxed))
        return
    if isinstance(target, nn.Module):
        call = as_function(call, target)
    if call.target in IN_PLACE or inplace(call):
        _check_unread(call, nodes)
        call = replace(call, target=IN_PLACE.get(call.target, call.target))
    try:
        rule = rule_of(call)
        box = rule.box([nodes[n].box for n in boxed])
        _check_batch(call, [nodes[n].box.lo for n in boxed], box.lo)
    except PolytritonError:
        raise
    except Exception as why:  # shapes that do not fit, and arguments that torch refuses
        shapes = ", ".join(str(list(nodes[n].box.lo.shape)) for n in boxed)
        raise UsageError(
            f"{call.name} refuses boxes of shape {shapes}: {str(why)[:200]}", "give boxes as the module takes its input, batch axis first"
        ) from why
    nodes[node] = Passed(rule, boxed, box)


def _check_unread(call: Call, nodes: dict[fx.Node, Passed]) -> None:
    """What is changed in place must have no other reader, nor what it may be a view of: a traced node keeps its first value."""
    changed = call.boxed[0]
    while len(changed.users) == 1:
        rule, read = nodes[changed].rule, nodes[changed].read
        if not (isinstance(rule, AffineRule) and rule.spread is None and len(read) == 1):
            return
        changed = read[0]
    raise call.refuse(f"{changed.name} is changed in place and read elsewhere too; write it without inplace")


def _check_batch(call: Call, operands: list[Tensor], made: Tensor) -> None:
    """Samples stay apart: forms of one are substituted into the box of that one alone.

    The number of samples stays, and where one sample could yet take another's place the axes say that none does.
    """
    batch, ranks = len(operands[0]), {x.ndim for x in operands}
    name = getattr(call.target, "__name__", "")
    apart = made.ndim > 0 and len(made) == batch and all(len(x) == batch for x in operands)
    if name in ("add", "sub", "mul", "div", "truediv", "cat"):
        apart = apart and ranks == {made.ndim}
    elif name in ("linear", "conv1d", "conv2d", "conv3d", "batch_norm", "max_pool2d"):
        apart = apart and operands[0].ndim >= {"linear": 2, "conv1d": 3, "conv2d": 4, "conv3d": 5, "max_pool2d": 4}.get(name, 2)
    elif name in ("mean", "sum", "permute", "transpose", "getitem", "pad"):
        apart = apart and _keeps_first(call, name, operands[0].ndim)
    if batch > 1 and not apart:
        raise call.refuse("it mixes the samples of a batch")


def _keeps_first(call: Call, name: str, rank: int) -> bool:
    given = [v for v in (*call.args[1:], *call.kwargs.values()) if v is not None]
    if name == "getitem":
        index = given[0] if isinstance(given[0], tuple) else (given[0],)
        return index[0] is Ellipsis or (isinstance(index[0], slice) and index[0] == slice(None))
    if name == "pad":
        return len(given[0]) < 2 * rank
    numbers = [d for v in given for d in (v if isinstance(v, (tuple, list)) else (v,))]
    axes = [d % rank for d in numbers if isinstance(d, int) and not isinstance(d, bool)]
    return bool(axes) and (axes[0] == 0 if name == "permute" else 0 not in axes)
