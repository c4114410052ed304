"""The table of published properties by family."""

from __future__ import annotations

from bench.families import table

NETS = {"a": "nets/acasxu/1_1.onnx", "b": "nets/mnist_fc/mnist-net_256x4.onnx", "c": "nets/cora/mnist.onnx", "d": "nets/acasxu/1_2.onnx"}


def row(key: str, verdict: str, crown: str) -> dict[str, str]:
    return {"id": key, "net": NETS[key], "verdict": verdict, "crown_verified": crown}


def test_families_count_what_is_proved() -> None:
    known = [row("a", "unsat", "0"), row("b", "unsat", "0"), row("c", "unsat", "1"), row("d", "sat", "0")]
    answers = [{"id": "a", "verdict": "timeout", "seconds": "60"}, {"id": "a", "verdict": "unsat", "seconds": "2.04"}]
    answers += [{"id": "b", "verdict": "timeout", "seconds": "60"}, {"id": "d", "verdict": "sat", "seconds": "1"}]
    assert table(known, answers)[2:] == [
        "| 256x4 | 1 | 0 | 0 | 19 |  |",
        "| acasxu | 1 | 0 | 1 | 22 | 2.0 |",
        "| others | 1 | 1 | 1 |  |  |",
        "| all | 3 | 1 | 2 | 165 |  |",
    ]
