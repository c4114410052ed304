"""Net: what the network computes. A frozen DAG of nodes in topological order, with its weights beside it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from types import MappingProxyType

import numpy as np

from polytriton.errors import InvalidIR

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Ref:
    """A named weight, printed `@name`."""

    name: str


Attr = int | float | str | tuple[int, ...] | Ref


@dataclass(frozen=True)
class Node:
    """One layer. `shape` has no batch axis; values are row-major, images are [channels, height, width]."""

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: Shape
    attrs: Mapping[str, Attr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def __reduce__(self) -> tuple[type[Node], tuple[object, ...]]:
        return Node, tuple(dict(v) if isinstance(v, Mapping) else v for v in (getattr(self, f.name) for f in fields(self)))

    @property
    def size(self) -> int:
        return prod(self.shape)

    def ints(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        value = self.attrs.get(key, default)
        assert isinstance(value, tuple)
        return value

    def integer(self, key: str, default: int = 0) -> int:
        value = self.attrs.get(key, default)
        assert isinstance(value, int)
        return value

    def number(self, key: str, default: float = 0.0) -> float:
        value = self.attrs.get(key, default)
        assert isinstance(value, (int, float))
        return float(value)

    def with_attrs(self, **attrs: Attr) -> Node:
        return replace(self, attrs={**self.attrs, **attrs})

    def drop(self, *keys: str) -> Node:
        return replace(self, attrs={k: v for k, v in self.attrs.items() if k not in keys})


@dataclass(frozen=True)
class Net:
    """The first node is the one `input`; every other node comes after those it reads; `output` names the result."""

    name: str
    nodes: tuple[Node, ...]
    output: str
    weights: Mapping[str, np.ndarray] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", MappingProxyType(dict(self.weights)))

    def __reduce__(self) -> tuple[type[Net], tuple[object, ...]]:
        return Net, (self.name, self.nodes, self.output, dict(self.weights))  # views of mappings do not travel

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    @property
    def by_name(self) -> dict[str, Node]:
        return {n.name: n for n in self.nodes}

    @property
    def input(self) -> Node:
        return self.nodes[0]

    def node(self, name: str) -> Node:
        for n in self.nodes:
            if n.name == name:
                return n
        raise InvalidIR(f"net @{self.name} has no node %{name}", "name one that `polytriton inspect` lists")

    def users(self) -> dict[str, list[str]]:
        """For each node the nodes that read it, once an operand."""
        found: dict[str, list[str]] = {n.name: [] for n in self.nodes}
        for n in self.nodes:
            for i in n.inputs:
                found[i].append(n.name)
        return found

    def weight(self, node: Node, key: str) -> np.ndarray | None:
        """The array an attribute refers to, or None where the attribute is absent."""
        ref = node.attrs.get(key)
        if ref is None:
            return None
        assert isinstance(ref, Ref)
        return self.weights[ref.name]

    def parameters(self, node: Node) -> int:
        """Weights and biases; index tables and error magnitudes are not the network's own."""
        arrays = (self.weight(node, key) for key in ("w", "b", "a", "c"))
        return sum(a.size for a in arrays if a is not None)

    def rebuild(
        self,
        nodes: tuple[Node, ...] | list[Node],
        weights: Mapping[str, np.ndarray] | None = None,
        output: str | None = None,
    ) -> Net:
        """A copy with other nodes; weights no node refers to any more are dropped. A new weight needs a new name: another node may read the
        old one by it."""
        weights = weights or {}
        for name in weights.keys() & self.weights.keys():
            if weights[name] is not self.weights[name]:
                raise InvalidIR(f"net @{self.name}: weight @{name} would take the place of another", "give it an unused name")
        pool = {**self.weights, **weights}
        used = {v.name for n in nodes for v in n.attrs.values() if isinstance(v, Ref)}
        return Net(self.name, tuple(nodes), output or self.output, {k: v for k, v in pool.items() if k in used})


class Builder:
    """Grows a Net node by node; shapes are inferred from the operator table and names kept unique.

    `reserved` names go to nodes that ask for exactly them: what else is named must not be taken for one of these.
    """

    def __init__(self, name: str, reserved: Container[str] = ()) -> None:
        self.name, self.reserved = name, reserved
        self.nodes: list[Node] = []
        self.weights: dict[str, np.ndarray] = {}
        self._taken: set[str] = set()
        self._shapes: dict[str, Shape] = {}

    def fresh(self, hint: str, own: bool = True) -> str:
        """A legal, unused node name close to the hint; a reserved one only where it is the hint itself and the node's `own`."""
        stem = "".join(ch if ch.isascii() and (ch.isalnum() or ch == "_") else "_" for ch in hint).strip("_") or "n"
        name, k = stem, 1
        while name in self._taken or (name in self.reserved and not (own and name == hint)):
            name, k = f"{stem}_{k}", k + 1
        self._taken.add(name)
        return name

    def constant(self, value: np.ndarray, hint: str = "w") -> Ref:
        stem = "".join(ch if ch.isascii() and (ch.isalnum() or ch == "_") else "_" for ch in hint).strip("_") or "w"
        name, k = stem, 1
        while name in self.weights:
            name, k = f"{stem}_{k}", k + 1
        kept = np.array(value, order="C")  # a copy, always: the net owns its weights
        kept.setflags(write=False)
        self.weights[name] = kept
        return Ref(name)

    def input(self, shape: Shape, hint: str = "x", **attrs: Attr) -> str:
        return self._push(Node(self.fresh(hint), "input", (), tuple(shape), attrs))

    def add(self, op: str, inputs: tuple[str, ...] | list[str], hint: str = "", own: bool = True, **attrs: Attr) -> str:
        """Appends a node and returns its name; `own` as for `fresh`."""
        from polytriton.ir.ops import infer_shape

        draft = Node("?", op, tuple(inputs), (), attrs)
        shape = infer_shape(draft, [self._shapes[i] for i in inputs], self.weights)
        return self._push(replace(draft, name=self.fresh(hint or op, own), shape=shape))

    def node(self, name: str) -> Node:
        return next(n for n in reversed(self.nodes) if n.name == name)

    def shape(self, name: str) -> Shape:
        return self._shapes[name]

    def build(self, output: str) -> Net:
        return Net(self.name, tuple(self.nodes), output, self.weights)

    def _push(self, node: Node) -> str:
        self.nodes.append(node)
        self._shapes[node.name] = node.shape
        return node.name
