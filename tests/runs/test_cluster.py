"""A Ray cluster of two machines (on this one): what is lost, is asked again; what is shipped, is shipped once."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polytriton.cli import main
from polytriton.errors import UsageError
from polytriton.frontend.instances import read_instances
from polytriton.runs import cluster as module
from polytriton.runs.asker import Answer, Settings
from polytriton.runs.cluster import Cluster, Shipping, unpack
from polytriton.runs.queries import instance_queries
from polytriton.runs.runner import Run
from tests.processes import quick_environment
from tests.runs.conftest import NAMES, QUERIES, VERDICTS

ENGINE = {"device": "cpu", "memory": 1 << 30}


def test_without_ray_one_message_says_how_to_get_it(here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    real = builtins.__import__

    def no_ray(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError("No module named 'ray'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_ray)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    assert main(["run", "--instances", "list.csv", "--engine", "ray"]) == 2
    said = capfd.readouterr()
    assert "pip install 'polytriton[ray]'" in said.err
    assert said.err.count("polytriton: ") == 1


def test_ray_is_told_not_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    module.find_ray()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


class Store:
    """An object store that counts."""

    def __init__(self) -> None:
        self.held: list[dict[str, bytes]] = []

    def put(self, files: dict[str, bytes]) -> int:
        self.held.append(files)
        return len(self.held) - 1


def test_a_network_is_shipped_once_and_opens_elsewhere(here: Path) -> None:
    import polytriton

    store = Store()
    shipping = Shipping(store)
    freight = shipping.freight("net.onnx")
    assert shipping.freight("net.onnx") is freight
    assert len(store.held) == 1
    place = unpack(here / "node", freight.digest, store.held[0])
    assert unpack(here / "node", freight.digest, {}) == place
    assert [p.name for p in (here / "node" / "shipped").iterdir()] == [f"{freight.digest}.poly"]
    assert polytriton.load(place).input_shape == (1, 2, 2)
    with pytest.raises(UsageError, match="no network"):
        shipping.freight("missing.onnx")


def test_nothing_is_written_outside_the_cache(here: Path) -> None:
    for name in ("../x", "/x", "a/../../x", "kernels/../x", ".."):
        with pytest.raises(UsageError, match="no artifact has"):
            unpack(here / "node", "0" * 64, {name: b""})
    assert not (here / "node").exists()


@pytest.fixture
def two(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two machines of one CPU, each with a cache of its own."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster as Machines

    module.find_ray()
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    machines = Machines()
    try:
        for name in ("first", "second"):
            machines.add_node(num_cpus=1, env_vars={**quick_environment(), "POLYTRITON_CACHE": str(here / name)}, include_dashboard=False)
        machines.wait_for_nodes()
        yield machines
    finally:
        ray.shutdown()
        machines.shutdown()


def pids(engine: Cluster) -> list[int]:
    import ray

    return [ray.get(w._actor.pid.remote()) for w in engine.workers]


@pytest.mark.slow
def test_a_killed_worker_and_a_lost_machine(here: Path, two: Any) -> None:
    """Half way one worker is killed, then the other's machine goes: nothing is lost, nothing comes twice."""
    import ray

    ray.init(address=two.address, logging_level="ERROR", log_to_driver=False)
    asked = instance_queries(read_instances("list.csv"))
    engine = Cluster(Settings(ENGINE), queries=QUERIES, workers=None, threads=None, address=None)
    run = Run(engine, Settings(ENGINE))
    told: list[Answer] = []

    def disturb(answer: Answer) -> None:
        told.append(answer)
        if len(told) == 3:
            os.kill(pids(engine)[0], signal.SIGKILL)
        if len(told) == 5:
            two.remove_node(two.list_all_nodes()[-1], allow_graceful=False)

    run.listeners.append(disturb)
    try:
        answers = run.ask(asked)
    finally:
        engine.close()
    assert ray.is_initialized()  # not ours to end
    assert [a.record.property for a in answers] == NAMES
    assert Counter(a.record.property for a in told) == Counter(NAMES)
    assert [a.record.verdict for a in answers] == VERDICTS


@pytest.mark.slow
def test_the_command(here: Path, two: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Streams, resumes, and each machine unpacks a network once; the machines share no cache with the driver."""
    command = ["run", "--instances", "list.csv", "--engine", "ray", "--address", two.address, "--json", "r.jsonl"]
    (here / "whole.csv").write_text((here / "list.csv").read_text())
    (here / "list.csv").write_text("".join((here / "whole.csv").read_text().splitlines(keepends=True)[:3]))
    assert main(command) == 0
    shutil.copy(here / "whole.csv", here / "list.csv")
    assert main([*command, "--resume"]) == 0
    said = capfd.readouterr()
    assert "3 from an earlier run" in said.out
    got = [json.loads(line) for line in (here / "r.jsonl").read_text().splitlines()]
    assert {r["property"]: r["verdict"] for r in got} == dict(zip(NAMES, VERDICTS, strict=True))
    assert len(got) == QUERIES
    held = [sorted(p.name for p in (here / name / "shipped").iterdir()) for name in ("first", "second") if (here / name).exists()]
    assert held
    assert set().union(*held) and max(map(len, held)) == 2
    assert not (here / "cache" / "shipped").exists()
    assert "Traceback" not in said.err


@pytest.mark.parametrize("given", [["--address", "127.0.0.1:1"], []])
def test_no_such_cluster(here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: list[str]) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["run", "--instances", "list.csv", "--engine", "ray", *given]) == 2
    said = capfd.readouterr()
    assert f"cannot join the Ray cluster at {(given or ['127.0.0.1:1'])[-1]}" in said.err
    assert "ray start --head" in said.err
