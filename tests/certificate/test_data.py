"""Published instances: what plain CROWN proves has a certificate; what is violated has none, whoever's certificate is offered."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from polytriton import checker
from tests.certificate.models import certify, change, refused

FAMILIES = [
    "acasxu/ACASXU_run2a_5_7_batch_2000", "mnist_fc/mnist-net_256x2", "mnist_fc/mnist-net_256x4", "eran_mnist/mnist_relu_9_200",
    "cora/mnist-set", "cifar10_resnet/resnet_2b", "metaroom/4cnn", "generated_props/cifar_convSmallRELU__PGDK",
    "generated_props/mnist_convSmallRELU__Point", "sri_resnet_a/resnet_3b2_bn_mixup_adv_4.0_bs128_lr-1",
]  # fmt: skip


TENSOR_CORES = {
    "mnist_fc/mnist-net_256x2": ("tf32", "bf16", "float16"), "eran_mnist/mnist_relu_9_200": ("tf32",),
    "generated_props/mnist_convSmallRELU__Point": ("tf32",),
}  # fmt: skip


def instances(data: Path, **wanted: str) -> list[tuple[Path, Path]]:
    with open(data / "instances.csv", newline="") as file:
        return [(data / r["net"], data / r["spec"]) for r in csv.DictReader(file)
                if all(r[k] == v for k, v in wanted.items())]  # fmt: skip


def proved(data: Path, family: str) -> list[tuple[float, Path, Path]]:
    """What one bound proves, with CROWN's margin."""
    with open(data / "instances.csv", newline="") as file:
        return [(float(r["crown_margin"]), data / r["net"], data / r["spec"]) for r in csv.DictReader(file)
                if (r["net"], r["verdict"], r["crown_verified"]) == (f"nets/{family}.onnx", "unsat", "1")]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_proved_instance_of_each_family(data: Path, tmp_path: Path, family: str) -> None:
    """The clearest of each: the checker's own rounding, and float32's, take a little of every margin; conversions take more."""
    net, spec = max(proved(data, family))[1:]
    for semantics in ("real", "float32", *TENSOR_CORES.get(family, ())):
        (tmp_path / "a.cert").write_bytes(certify(net, spec, semantics=semantics, seconds=100))
        found = checker.check(net, spec, tmp_path / "a.cert")
        assert (found.semantics, min(found.margins) > 0) == (semantics, True)


@pytest.mark.slow
def test_no_violated_instance_is_certified(data: Path, tmp_path: Path) -> None:
    """Neither by the writer nor by the certificate of another property of the same network under this one's name."""
    tried: Counter[Path] = Counter()
    donors: dict[Path, bytes] = {}
    for net, spec in instances(data, verdict="sat"):
        if tried[net] == 1:
            continue
        try:
            _, _, hashes = checker.load(net, spec)
        except checker.Unsupported:
            continue
        with pytest.raises(checker.Refused, match=r"time|divides|undecided"):
            certify(net, spec)
        others = [s for _, s in instances(data, net=str(net.relative_to(data)), verdict="unsat", crown_verified="1")]
        if others:
            if net not in donors:
                donors[net] = certify(net, others[0], seconds=100)
            assert refused((net, spec), change(donors[net], meta=lambda m, hashes=hashes: m.update(hashes)), tmp_path) is not None
        tried[net] += 1
    assert tried.total() > 10
