"""polytriton.compile(module, example_input): the module's own answers are what is verified, and nothing of the module changes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import polytriton
from polytriton.errors import PolytritonError, UnsupportedModel, UsageError
from polytriton.frontend import torch_module

HAVE_SCRIPT = importlib.util.find_spec("onnxscript") is not None


@pytest.fixture(params=["torch.export", "tracing"])
def exporter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each exporter alone; without onnxscript there is the older one only."""
    if request.param == "torch.export":
        if not HAVE_SCRIPT:
            pytest.skip("onnxscript is not installed: torch.export cannot write ONNX")
        if tuple(int(v) for v in torch.__version__.split(".")[:2]) >= (2, 9):  # earlier ones cannot write every module: tracing steps in
            monkeypatch.setattr(torch_module, "_by_tracing", _absent)
    else:
        monkeypatch.setattr(torch_module, "find_spec", lambda name: None)
    return request.param


def _absent(*_: Any) -> Any:
    raise torch_module._Absent


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1))
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.body, self.short = nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(3, 4, 1, 2)
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - self.mean) / 0.5
        y = self.body(F.relu(self.norm(self.first(x)))) + self.short(x)
        return self.last(self.drop(F.adaptive_avg_pool2d(F.relu(y), 1).flatten(1)))


class Looks(nn.Module):
    """Another path for other values: no trace shows it."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.a(x), "value": self.b(x)}


def trained(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """With statistics that batch norms have really gathered."""
    torch.manual_seed(seed)
    module = make()
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean = torch.randn(m.num_features) * 0.1
            m.running_var = torch.rand(m.num_features) + 0.5
    return module


def test_a_module_is_verified_as_it_answers_in_eval_mode(exporter: str) -> None:
    module = trained(Residual)
    module.norm.eval()  # a frozen batch norm inside a module that trains
    flags = [m.training for m in module.modules()]
    before = {k: v.clone() for k, v in module.state_dict().items()}
    example, rng = torch.rand(2, 3, 8, 8), torch.get_rng_state()
    net = polytriton.compile(module, example)
    assert [m.training for m in module.modules()] == flags and flags[0] and not all(flags)
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert net.input_shape == (3, 8, 8) and net.outputs == 5
    x = torch.rand(6, 3, 8, 8)
    with torch.no_grad():
        y = module.eval()(x)
    assert np.abs(net.predict(x) - y.numpy()).max() < 1e-5
    b = net.bounds(x - 0.01, x + 0.01)
    assert (b.lo <= y.numpy()).all() and (y.numpy() <= b.hi).all()


def test_no_exporter_rounds_a_batch_norm_into_a_convolution(exporter: str) -> None:
    """Folding is this project's own, where its rounding is charged: the model keeps the module's weights bit by bit."""
    module = trained(Residual)
    made = torch_module.export_module(module, torch.rand(1, 3, 8, 8))
    import onnx

    graph = onnx.load_from_string(made.model).graph
    assert "BatchNormalization" in [n.op_type for n in graph.node]
    kept = {onnx.numpy_helper.to_array(t).tobytes() for t in graph.initializer}
    assert all(v.numpy().tobytes() in kept for k, v in module.state_dict().items() if "num_batches" not in k and k != "mean")
    assert b"site-packages" not in made.model and b"test_torch_modules" not in made.model


def test_types_and_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "find_spec", lambda name: None)  # the quicker exporter
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    one = torch.rand(1, 4)
    examples = (one, torch.rand(7, 4, dtype=torch.float64), torch.rand(4), np.ones((1, 4)), [[1, 2, 3, 4]], (one,))
    made = [polytriton.compile(module, example) for example in examples]
    assert len({n.source.sha256 for n in made if n.source}) == 1
    double = polytriton.compile(nn.Linear(4, 2).double(), one)
    assert double.source is not None and double.source.input_dtype == "float64"


@pytest.mark.slow
def test_one_of_several_outputs(exporter: str) -> None:
    module = Two()
    assert polytriton.compile(module, torch.rand(1, 4)).outputs == 2
    net = polytriton.compile(module, torch.rand(1, 4), output="value")
    x = torch.rand(3, 4)
    assert np.allclose(net.predict(x), module(x)["value"].detach().numpy(), atol=1e-6)
    with pytest.raises(UsageError, match="logits, value"):
        polytriton.compile(module, torch.rand(1, 4), output="nothing")


def test_a_module_that_looks_at_values_is_refused(exporter: str) -> None:
    for check in (True, False):
        with pytest.raises(UnsupportedModel) as caught:
            polytriton.compile(Looks(), torch.ones(1, 4), check=check)
        assert "Looks" in caught.value.message
        assert ("onnxscript" in caught.value.remedy) == (exporter == "tracing")


def test_a_changed_export_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an exporter may get wrong: the module's own answers are the witness."""
    monkeypatch.setattr(torch_module, "find_spec", lambda name: None)  # the quicker exporter
    module, other = nn.Linear(4, 2), nn.Linear(4, 2)
    export = torch_module._export
    monkeypatch.setattr(torch_module, "_export", lambda m, x, names: export(other, x, names))
    with pytest.raises(UnsupportedModel, match="module's own"):
        polytriton.compile(module, torch.rand(1, 4))
    assert polytriton.compile(module, torch.rand(1, 4), check=False).outputs == 2


@pytest.mark.parametrize(
    "module,example,kind,words",
    [
        (nn.Linear(4, 2), None, UsageError, "example"),
        ("model.pth", None, UsageError, "compile(module, example_input)"),
        ("model.onnx", torch.rand(1, 4), UsageError, "leave it out"),
        (nn.Linear(4, 2), torch.rand(1, 5), UsageError, "[1, 5]"),
        (nn.Linear(4, 2), (torch.rand(1, 4), torch.rand(1, 4)), UsageError, "2 inputs"),
        (nn.Conv2d(1, 2, 3), torch.rand(1, 8, 8), UsageError, "batch"),
        (Random(), torch.rand(1, 64), UnsupportedModel, "dropout"),
        (nn.LSTM(4, 2), torch.rand(1, 3, 4), UnsupportedModel, "tuple"),
        (nn.Linear(4, 2).bfloat16(), torch.rand(1, 4), UnsupportedModel, "float32"),
        (nn.Softplus(), torch.rand(1, 4), UnsupportedModel, "CastLike"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_mistakes_meet_a_message(module: nn.Module | str, example: Any, kind: type[PolytritonError], words: str) -> None:
    with pytest.raises(kind) as caught:
        polytriton.compile(module, example)
    assert words in str(caught.value) and caught.value.remedy and "\n" not in caught.value.message


def test_without_any_exporter_one_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_module, "find_spec", lambda name: None)
    monkeypatch.setattr(torch_module, "_by_tracing", _absent)
    with pytest.raises(UsageError, match="pip install onnxscript"):
        polytriton.compile(nn.Linear(4, 2), torch.rand(1, 4))


def test_nothing_is_printed(exporter: str, capfd: pytest.CaptureFixture[str]) -> None:
    polytriton.compile(nn.Linear(4, 2), torch.rand(1, 4))
    assert capfd.readouterr() == ("", "")


# ---- programs of torch.export ----


@pytest.mark.thinned(2)
def test_an_exported_program_is_the_modules(exporter: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(8, 5)]
    module, x = nn.Sequential(*layers).eval(), torch.rand(4, 3, 4, 4)
    for shapes, example in ((None, x[:1]), (({0: torch.export.Dim("batch")},), x)):
        program = torch.export.export(module, (example,), dynamic_shapes=shapes)
        if exporter == "tracing":  # it looks at what guards the program's shapes
            with pytest.raises(UnsupportedModel) as caught:
                polytriton.compile(program)
            assert "onnxscript" in caught.value.remedy
            continue
        net = polytriton.compile(program)
        with torch.no_grad():
            assert np.allclose(net.predict(x.numpy()), module(x).numpy(), atol=1e-5)


def test_programs_that_are_refused() -> None:
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout()), torch.rand(2, 4)
    for program, words, remedy in (
        (torch.export.export(module.eval(), (x,)), "batch of one", "dynamic_shapes"),
        (torch.export.export(module.train(), (x[:1],)), "two different answers", "module.eval()"),
        (torch.export.export(nn.Bilinear(2, 2, 2), (x[:1, :2], x[:1, :2])), "2 inputs", "one tensor"),
    ):
        with pytest.raises(PolytritonError, match=words) as caught:
            polytriton.compile(program)
        assert remedy in caught.value.remedy


def test_a_file_of_torch_is_opened_by_its_owner(tmp_path: Path) -> None:
    """torch.export.load may run what the file's maker wrote into it."""
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(nn.Linear(4, 3), (torch.rand(1, 4),)), path)
    with pytest.raises(UsageError, match="torch file") as caught:
        polytriton.compile(path)
    assert f'torch.export.load("{path}")' in caught.value.remedy
    assert polytriton.compile(torch.export.load(path)).outputs == 3
