"""Mutations: of bytes, of text by its tokens, and of ONNX models by their fields. Every one is a function of (data, rng)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import onnx
from onnx import AttributeProto, TensorProto, helper

from polytriton.frontend.onnx_ops import TABLE

Mutation = Callable[[bytes, random.Random], bytes]
NUMBERS = (
    "0", "1", "-1", "2", "3", "7", "8", "16", "255", "1000", "65536", "2147483647", "2147483648", "9223372036854775807",
    "-9223372036854775808",
    "1e308", "1e309", "-1e-400", "1e999999999", "0.1", "5e-324", "nan", "inf", "-inf", "00", "1_0", "0x10", "٣", "1.", ".5",
)  # fmt: skip
INTS = (0, 1, -1, 2, 3, 5, 7, 8, 64, 1000, 4096, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-38, 3.4e38, float("inf"), float("nan"), 1e-5)
TOKEN = re.compile(rb"[A-Za-z_][A-Za-z_0-9]*|-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\s+|[^\sA-Za-z0-9]")
NUMERIC = re.compile(rb"-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


def raw(data: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, copies and inserts bytes."""
    out = bytearray(data or b"\0")
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        i, kind = rng.randrange(len(out)), rng.randrange(6)
        if kind == 0:
            out[i] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[i] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del out[i : i + rng.choice((1, 2, 4, 8, len(out)))]
        elif kind == 3:
            out[i:i] = rng.randbytes(rng.choice((1, 2, 4, 8)))
        elif kind == 4:
            j = rng.randrange(len(out))
            out[i:i] = out[j : j + rng.choice((1, 4, 16, 64))]
        else:
            out[i : i + 8] = rng.choice(INTS).to_bytes(8, "little", signed=True)
        out = out or bytearray(b"\0")
    return bytes(out)


def text(words: Sequence[str]) -> Mutation:
    """Token by token, with the words of a language; a fifth of the time byte by byte."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return raw(data, rng)
        tokens = TOKEN.findall(data) or [b" "]
        for _ in range(rng.choice((1, 1, 2, 3, 6))):
            i, kind = rng.randrange(len(tokens)), rng.randrange(7)
            if kind == 0:
                places = [k for k, t in enumerate(tokens) if NUMERIC.fullmatch(t)] or [i]
                tokens[rng.choice(places)] = rng.choice(NUMBERS).encode()
            elif kind == 1:
                tokens[i : i + 1] = [rng.choice(words).encode()]
            elif kind == 2:
                tokens[i:i] = [rng.choice(words).encode(), b" "]
            elif kind == 3:
                del tokens[i : i + rng.choice((1, 1, 2, 8, 40))]
            elif kind == 4:
                j = rng.randrange(len(tokens))
                tokens[i:i] = tokens[j : j + rng.choice((1, 3, 10, 40))]
            elif kind == 5:
                j = rng.randrange(len(tokens))
                tokens[i], tokens[j] = tokens[j], tokens[i]
            else:
                tokens[i:i] = [tokens[i]] * rng.choice((1, 2, 50, 2000))
            tokens = tokens or [b" "]
        return b"".join(tokens)[: 1 << 15]

    return mutate


# ---- ONNX -------------------------------------------------------------------------------------------------------

ATTRIBUTES = (
    "axis", "axes", "alpha", "beta", "transA", "transB", "kernel_shape", "pads", "strides", "dilations", "group", "auto_pad", "ceil_mode",
    "count_include_pad", "epsilon", "perm", "to", "keepdims", "noop_with_empty_axes", "starts", "ends", "split", "num_outputs", "mode",
    "value", "value_ints", "allowzero", "start", "end", "momentum", "spatial", "fmod",
)  # fmt: skip


def model(data: bytes, rng: random.Random) -> bytes:
    """Fields of the parsed model; what does not parse is changed byte by byte."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # whatever protobuf calls it
        return raw(data, rng)
    if rng.random() < 0.1 or not proto.graph.node:
        return raw(data, rng)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        try:
            rng.choice((_node, _node, _attribute, _attribute, _weight, _weight, _ends))(proto, rng)
        except (ValueError, TypeError, IndexError):  # a field that cannot hold what was drawn: another time
            continue
    return proto.SerializeToString()


def _names(proto: onnx.ModelProto) -> list[str]:
    g = proto.graph
    return ["", *(t.name for t in g.initializer), *(i.name for i in g.input), *(o for n in g.node for o in n.output)]


def _node(proto: onnx.ModelProto, rng: random.Random) -> None:
    g = proto.graph
    i, kind = rng.randrange(len(g.node)), rng.randrange(7)
    node = g.node[i]
    if kind == 0:
        node.op_type = rng.choice([*TABLE, "Tanh", "If", "Loop", ""])
    elif kind == 1 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(_names(proto))
    elif kind == 2:
        node.input.append(rng.choice(_names(proto)))
    elif kind == 3 and node.input:
        del node.input[rng.randrange(len(node.input))]
    elif kind == 4 and len(g.node) > 1:
        del g.node[i]
    elif kind == 5:
        copy = g.node.add()
        copy.CopyFrom(node)
        for k, name in enumerate(list(copy.output)):
            copy.output[k] = f"{name}{rng.randrange(9)}"
    else:  # a new node between this one's result and those who read it
        made = g.node.add()
        made.op_type = rng.choice(list(TABLE))
        old = node.output[0]
        node.output[0] = f"m{rng.randrange(99)}"
        made.input.extend([node.output[0], *rng.sample(_names(proto), k=rng.randrange(3))][: rng.randrange(1, 4)])
        made.output.append(old)
        for name in rng.sample(ATTRIBUTES, k=rng.randrange(3)):
            made.attribute.append(helper.make_attribute(name, _value(rng)))


def _value(rng: random.Random) -> int | float | str | list[int] | TensorProto:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(INTS)
    if kind == 1:
        return rng.choice(FLOATS)
    if kind == 2:
        return rng.choice(("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET", "constant", "reflect", "\0"))
    if kind == 3:
        return _tensor(rng)
    return [rng.choice(INTS[:9]) if rng.random() < 0.8 else rng.choice(INTS) for _ in range(rng.choice((1, 2, 3, 4, 4, 8)))]


def _tensor(rng: random.Random) -> TensorProto:
    dims = [rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(4))]
    count = 1
    for d in dims:
        count *= d
    kind = rng.choice((TensorProto.FLOAT, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.BOOL, TensorProto.FLOAT16))
    values: list[float] = [
        rng.choice(INTS if kind == TensorProto.INT64 else FLOATS if kind != TensorProto.BOOL else (0, 1)) for _ in range(count)
    ]
    return helper.make_tensor(f"t{rng.randrange(9)}", kind, dims, values)


def _attribute(proto: onnx.ModelProto, rng: random.Random) -> None:
    node = rng.choice(proto.graph.node)
    kind = rng.randrange(4)
    if kind == 0 or not node.attribute:
        node.attribute.append(helper.make_attribute(rng.choice(ATTRIBUTES), _value(rng)))
        return
    a = rng.choice(node.attribute)
    if kind == 1:
        node.attribute.remove(a)
    elif a.type == AttributeProto.INTS and a.ints:
        a.ints[rng.randrange(len(a.ints))] = rng.choice(INTS)
    elif a.type == AttributeProto.INT:
        a.i = rng.choice(INTS)
    elif a.type == AttributeProto.FLOAT:
        a.f = rng.choice(FLOATS)
    elif a.type == AttributeProto.TENSOR:
        _spoil(a.t, rng)
    else:
        a.name = rng.choice(ATTRIBUTES)


def _weight(proto: onnx.ModelProto, rng: random.Random) -> None:
    g = proto.graph
    if not g.initializer or rng.random() < 0.15:
        made = _tensor(rng)
        made.name = rng.choice(_names(proto)) or "w9"
        g.initializer.append(made)
        return
    _spoil(rng.choice(g.initializer), rng)


def _spoil(t: TensorProto, rng: random.Random) -> None:
    kind = rng.randrange(7)
    if kind == 0 and t.dims:
        t.dims[rng.randrange(len(t.dims))] = rng.choice(INTS)
    elif kind == 1:
        t.dims.insert(0, rng.choice((0, 1, 1, 2, -1)))
    elif kind == 2:
        t.data_type = rng.randrange(25)
    elif kind == 3 and t.HasField("raw_data"):
        t.raw_data = raw(t.raw_data, rng)
    elif kind == 4 and t.HasField("raw_data") and len(t.raw_data) >= 8:
        i = rng.randrange(len(t.raw_data) // 8) * 8
        t.raw_data = t.raw_data[:i] + rng.choice(INTS).to_bytes(8, "little", signed=True) + t.raw_data[i + 8 :]
    elif kind == 5:
        t.data_location = TensorProto.EXTERNAL
        for key, value in (("location", rng.choice(("../w", "/etc/passwd", "w.bin", "", "a\0b"))), ("offset", str(rng.choice(INTS)))):
            entry = t.external_data.add()
            entry.key, entry.value = key, value
    elif t.dims:
        dims = list(t.dims)
        rng.shuffle(dims)
        t.dims[:] = dims


def _ends(proto: onnx.ModelProto, rng: random.Random) -> None:
    g, kind = proto.graph, rng.randrange(6)
    if kind == 0 and proto.opset_import:
        proto.opset_import[0].version = rng.choice((0, 6, 7, 9, 11, 13, 18, 21, 23, 26, 99, 1 << 62))
    elif kind == 1 and g.input:
        rng.choice(g.input).type.tensor_type.elem_type = rng.choice((1, 7, 10, 11, 16, 99))
    elif kind == 2 and g.input:
        dims = rng.choice(g.input).type.tensor_type.shape.dim
        if dims:
            rng.choice(dims).dim_value = rng.choice(INTS)
    elif kind == 3 and g.input:
        rng.choice(g.input).type.tensor_type.shape.dim.add().dim_value = rng.choice((0, 1, 2, 3, 1 << 20))
    elif kind == 4 and g.output:
        g.output[0].name = rng.choice(_names(proto))
    else:
        g.input.add().name = rng.choice(_names(proto))
