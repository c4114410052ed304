"""What search proves of networks of smooth functions that one bound leaves open: generated ones, of more inputs than boxes are divided for.

    python -m bench.smooth [--timeout 20] [--inputs 80] [--width 20] [--networks 3] [FUNCTION ...]

Each network is asked whether a difference of outputs stays above thresholds between what the best bound proves and the least value that
20,000 corners of the box take, at shares of that room. A line a network: proved of so many, by one bound, by slopes chosen for every row,
and by dividing what the functions read; then the median seconds of what the last one proved.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import polytriton
from bench.core.command import parser
from polytriton.heap import keep_memory

FUNCTIONS = ("Sigmoid", "Tanh", "Gelu")
SEARCHES = ("none", "slopes", "neurons")
SHARES = (-0.5, -0.1, 0.1, 0.2, 0.3, 0.5)  # of the room between a plain bound and one with chosen slopes below 0, of that to corners above


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("smooth", __doc__)
    p.add_argument("functions", nargs="*", default=FUNCTIONS, metavar="FUNCTION", help="ONNX operators (%(default)s)")
    p.add_argument("--timeout", type=float, default=20.0, help="seconds a question (%(default)s)")
    p.add_argument("--inputs", type=int, default=80)
    p.add_argument("--width", type=int, default=20, help="neurons of each of two layers (%(default)s)")
    p.add_argument("--networks", type=int, default=3)
    p.add_argument("--epsilon", type=float, default=0.05)
    a = p.parse_args(arguments)
    keep_memory()
    print(f"{'network':24}{'asked':>6}" + "".join(f"{s:>9}" for s in SEARCHES) + f"{'median s':>10}")
    for function in a.functions:
        for seed in range(a.networks):
            net = polytriton.compile(network(function, (a.inputs, a.width, a.width, 3), seed), check=False)
            properties = questions(net, seed, a.epsilon)
            proved, seconds = dict.fromkeys(SEARCHES, 0), list[float]()
            for question in properties:
                for search in SEARCHES:
                    start = time.perf_counter()
                    found = net.verify(question, search=search, timeout=a.timeout, falsifier=False).verdict == "unsat"
                    proved[search] += found
                    seconds += [time.perf_counter() - start] if found and search == SEARCHES[-1] else []
            name, took = f"{function} {a.inputs}-{a.width}-{a.width}-3 #{seed}", statistics.median(seconds) if seconds else float("nan")
            print(f"{name:24}{len(properties):6}" + "".join(f"{proved[s]:9}" for s in SEARCHES) + f"{took:10.2f}", flush=True)
    return 0


def network(function: str, sizes: tuple[int, ...], seed: int) -> bytes:
    """Dense layers with one function between them."""
    rng, nodes, held, at = np.random.default_rng(seed), [], [], "x"
    for k, (n, m) in enumerate(pairwise(sizes)):
        w, b = rng.standard_normal((m, n)) * 1.5 / np.sqrt(n), 0.3 * rng.standard_normal(m)
        held += [numpy_helper.from_array(w.astype(np.float32), f"w{k}"), numpy_helper.from_array(b.astype(np.float32), f"b{k}")]
        nodes.append(helper.make_node("Gemm", [at, f"w{k}", f"b{k}"], [f"h{k}"], transB=1))
        at = f"h{k}"
        if k + 2 < len(sizes):
            nodes.append(helper.make_node(function, [at], [f"f{k}"]))
            at = f"f{k}"
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", sizes[0]), (at, sizes[-1]))]
    graph = helper.make_graph(nodes, f"{function.lower()}{seed}", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def questions(net: polytriton.Verifier, seed: int, epsilon: float) -> list[polytriton.Property]:
    """Two differences of outputs, each at thresholds from what one bound proves to what is reached."""
    rng = np.random.default_rng([1, seed])
    x = rng.random((1, net.inputs))
    lo, hi, forms = x - epsilon, x + epsilon, np.array([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])
    plain, best = (np.asarray(net.margins(lo, hi, forms, effort=e))[0] for e in ("tight", "best"))
    corners = np.where(rng.random((20_000, net.inputs)) < 0.5, lo, hi).astype(np.float32)
    least = (np.asarray(net.predict(corners)).reshape(len(corners), -1) @ forms.T).min(0)
    _, y = net.variables()
    made = []
    for k in range(len(forms)):
        for share in SHARES:
            room = best[k] - plain[k] if share < 0 else least[k] - best[k]
            at = float(best[k] + share * room)
            made.append(polytriton.Property((lo[0], hi[0]), unsafe=[y[k] - y[k + 1] <= at]))
    return made


if __name__ == "__main__":
    raise SystemExit(main())
