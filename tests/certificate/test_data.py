"""Published instances: what plain CROWN proves has a certificate; what is violated has none, whoever's certificate is offered."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from polytriton import checker
from polytriton.certificate.write import certify
from tests.certificate.models import change, refused

FAMILIES = [
    "acasxu/ACASXU_run2a_5_7_batch_2000", "mnist_fc/mnist-net_256x2", "mnist_fc/mnist-net_256x4", "eran_mnist/mnist_relu_9_200",
    "cora/mnist-set", "cifar10_resnet/resnet_2b", "metaroom/4cnn", "generated_props/cifar_convSmallRELU__PGDK",
    "generated_props/mnist_convSmallRELU__Point", "sri_resnet_a/resnet_3b2_bn_mixup_adv_4.0_bs128_lr-1",
]  # fmt: skip


def instances(data: Path, **wanted: str) -> list[tuple[Path, Path, float]]:
    with open(data / "instances.csv", newline="") as file:
        return [(data / r["net"], data / r["spec"], float(r["crown_margin"] or "nan")) for r in csv.DictReader(file)
                if all(r[k] == v for k, v in wanted.items())]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_proved_instance_of_each_family(data: Path, tmp_path: Path, family: str) -> None:
    net, spec, crown = instances(data, net=f"nets/{family}.onnx", verdict="unsat", crown_verified="1")[0]
    (tmp_path / "a.cert").write_bytes(certify(net, spec))
    margins, substitutions = checker.check(net, spec, tmp_path / "a.cert")
    if substitutions:  # bounds at least as good as CROWN's, but for the slack of the claims
        assert min(margins) > 0.99 * crown


@pytest.mark.slow
def test_no_violated_instance_is_certified(data: Path, tmp_path: Path) -> None:
    """Neither by the writer nor by the certificate of another property of the same network under this one's name."""
    tried: Counter[Path] = Counter()
    donors: dict[Path, bytes] = {}
    for net, spec, _ in instances(data, verdict="sat"):
        if tried[net] == 2:
            continue
        try:
            _, pieces, hashes = checker.load(net, spec)
        except checker.Unsupported:
            continue
        with pytest.raises(checker.Refused, match="do not prove"):
            certify(net, spec)
        others = [s for _, s, _ in instances(data, net=str(net.relative_to(data)), verdict="unsat", crown_verified="1")]
        if others:
            if net not in donors:
                donors[net] = certify(net, others[0])
            meta = hashes | {"rows": json.dumps([[[0, 1e-9]] * len(group) for group in pieces.values()])}
            assert refused((net, spec), change(donors[net], meta=lambda m, meta=meta: m.update(meta)), tmp_path) is not None
        tried[net] += 1
    assert tried.total() > 10
