"""Properties over several networks: their inputs and outputs numbered through, asked about variables that tie the inputs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from polytriton.errors import UnsupportedProperty, UsageError
from polytriton.frontend.onnx import Imported, Source
from polytriton.frontend.query import Property, Tensor, as_rationals
from polytriton.frontend.ties import Ties, find_ties
from polytriton.frontend.vnnlib import made_property, text_and_title
from polytriton.frontend.vnnlib_parse import EQUAL, ISOMORPHIC, Declared, Document, parse
from polytriton.guard import guard_class


@dataclass(frozen=True)
class Named(Tensor):
    """Elements that have names of their own."""

    names: tuple[str, ...] = ()

    def element(self, index: int, version: str) -> str:
        return self.names[index]


@guard_class
class JointProperty(Property):
    """An unsafe set of several networks' inputs and outputs. Its boxes and rows are over the variables z of `ties`.

    A point z stands for the inputs that the networks get there, in their type: these are judged, in exact rationals.
    """

    networks: tuple[Declared, ...]
    ties: Ties
    dtype: str
    text: str

    @staticmethod
    def from_document(document: Document, name: str, dtype: str, text: str) -> JointProperty:
        networks = document.networks
        of_input = [k for k, n in enumerate(networks) for _ in range(prod(n.input.shape))]
        words = [n.input.element(i, "2.0") for n in networks for i in range(prod(n.input.shape))]
        ties, asserts = find_ties(document.asserts, of_input, words, name)
        outputs = [n.output.element(i, "2.0") for n in networks for i in range(prod(n.output.shape))]
        first = [words[k] for k in np.unique(ties.variable, return_index=True)[1].tolist()]
        own = [w if p < 0 else f"({w} - {first[p]})" for w, p in zip(first, ties.parent.tolist(), strict=True)]
        x, y = Named("X", names=tuple(own)), Named("Y", names=tuple(outputs))
        made = made_property(Document("2.0", asserts, x, y, len(own), document.n_out, "joined"), name)
        joint = object.__new__(JointProperty)
        for key, value in {**vars(made), "networks": tuple(networks), "ties": ties, "dtype": dtype, "text": text}.items():
            object.__setattr__(joint, key, value)
        return joint

    def violated(self, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float], *, rounded: bool = False) -> int | None:
        """The first disjunct in which the inputs that the networks get at z lie, with these outputs, in exact rationals; or None."""
        z, outputs = self._pair(x, y)
        given = self.ties.values(z, self.dtype)
        if not (np.isfinite(given).all() and np.isfinite(outputs).all()):
            return None
        point = self.ties.parameters(given)
        return self._piece(np.array([float(v) for v in point]), point, as_rationals(outputs.tolist()), rounded)

    def ends(self, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float]) -> list[tuple[Tensor, np.ndarray]]:
        """Every network's tensors with their values: the inputs that it gets at z, or z's own where its type has none in the box."""
        (_, z), (_, outputs) = super().ends(x, y)
        dtype = self.dtype if self.violated(z, outputs) is not None else "float64"
        inputs, made, at, to = self.ties.values(z, dtype).astype(np.float64), list[tuple[Tensor, np.ndarray]](), 0, 0
        for n in self.networks:
            made += [(n.input, inputs[at : at + prod(n.input.shape)]), (n.output, outputs[to : to + prod(n.output.shape)])]
            at, to = at + prod(n.input.shape), to + prod(n.output.shape)
        return made

    def assignment(self, x: np.ndarray | Sequence[float], y: np.ndarray | Sequence[float]) -> dict[str, np.ndarray]:
        """A counterexample's values by declared tensor, in the declared shapes."""
        return {tensor.name: values.reshape(tensor.shape) for tensor, values in self.ends(x, y)}

    def vnnlib(self) -> str:
        """The text that was read."""
        return self.text


def read_joint(source: str | Path, given: Mapping[str, Source]) -> JointProperty:
    """A property over these networks, by the names that it gives them; one that is `equal-to` another is not given."""
    text, title = text_and_title(source)
    doc = parse(text, title)
    if not doc.networks:
        raise UnsupportedProperty(f"{title} declares no networks by name", "write it in VNN-LIB 2.0: (declare-network f ...)")
    wanted = [n.name for n in doc.networks if n.like[0] != EQUAL]
    if set(wanted) != given.keys():
        raise UsageError(
            f"{title} needs the networks {', '.join(wanted)}, given are {', '.join(given) or 'none'}",
            "give one file a network, and none for one that is equal-to another",
        )
    for n in doc.networks:
        check_declared(title, n, given[model_of(n)])
    dtypes = sorted({s.input_dtype for s in given.values()})
    if len(dtypes) > 1:
        raise UnsupportedProperty(f"the networks take {' and '.join(dtypes)}", "convert the models to one type")
    return JointProperty.from_document(doc, title, dtypes[0], text)


def model_of(network: Declared) -> str:
    """The name under which its model is given."""
    kind, other = network.like
    return other if kind == EQUAL else network.name


def check_declared(title: str, network: Declared, source: Source) -> None:
    """What the standard has a solver refuse of a network: other sizes and shapes, other element types."""
    for tensor, shape in ((network.input, source.input_shape), (network.output, source.output_shape)):
        declared, own = ([d for d in some if d != 1] for some in (tensor.shape, shape))
        if prod(declared) != prod(own) or (min(len(declared), len(own)) > 1 and declared != own):
            raise UnsupportedProperty(
                f"{title} declares {tensor.name} of shape {list(tensor.shape)}, that of network {network.name} is {list(shape)}",
                "declare the network's own shape, or a flat one",
            )
        check_type(tensor, source)


def check_type(tensor: Tensor, source: Source) -> None:
    if tensor.dtype.lower() not in ("real", source.input_dtype):
        raise UnsupportedProperty(
            f"{tensor.name} is declared {tensor.dtype}, the network computes in {source.input_dtype}",
            f"declare it {source.input_dtype}, or real to ask about real numbers",
        )


def check_isomorphic(property_: JointProperty, models: Mapping[str, Imported]) -> None:
    """Networks that are called isomorphic run the same operators on numbers of the same shapes; weights may differ."""
    import onnx

    def structure(name: str) -> list[object]:
        graph = onnx.ModelProto.FromString(models[name].model).graph
        return [[n.op_type for n in graph.node], [list(t.dims) for t in graph.initializer]]

    for n in property_.networks:
        kind, other = n.like
        if kind == ISOMORPHIC and structure(n.name) != structure(other):
            raise UnsupportedProperty(
                f"{n.name} is declared isomorphic-to {other}, but runs other operators, or on other shapes",
                "leave isomorphic-to out: networks need not be alike",
            )
