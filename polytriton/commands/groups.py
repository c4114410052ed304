"""Groups of options that several commands share: a command takes one dataclass where it would take ten arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from polytriton.commands.options import option
from polytriton.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from polytriton.frontend.instances import Instance
    from polytriton.runs.asker import Settings
    from polytriton.runs.queries import Balls, Certify
    from polytriton.runs.vnncomp import CompetitionFile


@dataclass(frozen=True)
class EngineOptions:
    """How bounds are computed."""

    device: Annotated[
        str,
        option("--device", help="Where to compute: cpu, cuda, cuda:N, cuda:0,cuda:1, or interpret (GPU kernels on the CPU, slow)."),
    ] = "cpu"
    semantics: Annotated[
        str, option("--semantics", help="The arithmetic certified: real (exact, as competitions read it), float32, tf32, bf16 or float16.")
    ] = "float32"
    function_error: Annotated[
        list[str] | None,
        option(
            "--function-error",
            metavar="NAME=ULPS",
            help="How far a deployed smooth function may lie from the exact one, in units of 2^-23: tanh=2. May be repeated.",
        ),
    ] = None
    dtype: Annotated[
        str,
        option(
            "--dtype",
            help="Coefficients: float32, float64, auto (float32, then float64 where only rounding failed); on GPUs also tf32x3, bf16x6.",
        ),
    ] = "auto"
    numerics: Annotated[
        str,
        option(
            "--numerics",
            help="How rounding is paid for: folded (one error term a row) or interval (the paper's; with --device cuda or interpret).",
        ),
    ] = "folded"
    candidates: Annotated[
        str | None, option("--candidates", help="Where bounds are taken: all (best of every frontier) or input (as CROWN).")
    ] = None
    memory: Annotated[
        str, option("--memory", metavar="SIZE", help="Memory the analysis may take on a machine, all workers together: 500M, 2G.")
    ] = "4G"
    threads: Annotated[
        int | None,
        option("--threads", metavar="N", help="CPU threads of each worker; by default the CPUs divided among them, or torch's own choice."),
    ] = None

    def options(self, *, here: bool = True) -> dict[str, Any]:
        """Checked options of a Verifier; where it is to work `here`, the device must be there, and gets its threads."""
        from polytriton.prove.fleet import check_devices
        from polytriton.prove.options import Options

        semantics = ",".join([self.semantics, *(self.function_error or ())])
        made: dict[str, Any] = {"device": self.device, "semantics": semantics, "dtype": self.dtype, "memory": parse_size(self.memory)}
        if self.numerics != "folded":
            made["numerics"] = self.numerics
        if self.candidates is not None:
            made["candidates"] = self.candidates
        device = Options(**made).device
        if self.threads is not None and not 1 <= self.threads <= 4096:
            raise UsageError(f"--threads {self.threads} is out of range", "give 1 or more")
        if here:
            check_devices(device)
        if here and self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        return made


@dataclass(frozen=True)
class Asking:
    """How hard a query is tried."""

    timeout: Annotated[
        float | None, option("--timeout", metavar="S", help="Seconds for each query; overrides those of an instance list.")
    ] = None
    falsify: Annotated[bool, option("--falsify/--no-falsify", help="Look for counterexamples where no proof is found.")] = True
    seed: Annotated[int, option("--seed", help="Seed of the counterexamples' search.")] = 0
    method: Annotated[
        str | None,
        option("--method", help="How bounds are computed: polytriton, or as others do, to compare with: ibp, crown-ibp or deeppoly."),
    ] = None
    search: Annotated[
        str | None,
        option(
            "--search",
            metavar="HOW",
            help="What follows where one bound decides nothing, until --timeout or for 60 s: none, input (boxes of inputs are divided), "
            "slopes (of lines below ReLUs are chosen for every row), neurons (that, then executions are divided by neurons' signs), auto "
            "(input where at most 64 inputs are free, else neurons). By default auto for verify, none for run.",
        ),
    ] = None

    def check(self) -> None:
        """What can be told at once."""
        if self.timeout is not None and not 0 < self.timeout < float("inf"):
            raise UsageError(f"--timeout {self.timeout:g} is no time", "give seconds above 0, or leave it out for no limit")
        if self.seed < 0:
            raise UsageError(f"--seed {self.seed} is negative", "give 0 or more")

    def settings(self, engine: EngineOptions, *, here: bool = True, search: str = "none") -> Settings:
        """`search`: the command's own choice, where none is given."""
        from polytriton.prove.options import OWN, Options
        from polytriton.prove.strategy import check_search
        from polytriton.runs.asker import Settings

        options = engine.options(here=here)
        if self.method is not None:
            options["method"] = Options(method=self.method).method
        compares = self.method not in (None, OWN)
        if compares and self.search not in (None, "none"):
            raise UsageError(f"--search goes on from polytriton's own bounds, not from those of {self.method}", "leave one of them out")
        search = "none" if compares else self.search or search
        check_search(search)
        self.check()
        return Settings(options, self.timeout, self.falsify, self.seed, search)


ENGINES = ("auto", "local", "processes", "ray")


def check_engine(engine: str, workers: int | None, address: str | None) -> None:
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine[:40]} is unknown", f"use one of: {', '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise UsageError("--address is the address of a Ray cluster", "add --engine ray, or leave it out")
    if workers is not None:
        from polytriton.runs.share import check_workers

        check_workers(workers)
    if engine == "ray":
        from polytriton.runs.cluster import find_ray

        find_ray()


@dataclass(frozen=True)
class Sharing:
    """Who takes a share of one query's search."""

    engine: Annotated[
        str,
        option(
            "--engine",
            help="Who shares a search with this process: nobody (local), processes, actors of a cluster (ray), or auto: a process for each "
            "of --threads while processors are idle.",
        ),
    ] = "auto"
    workers: Annotated[
        int | None,
        option(
            "--workers",
            metavar="N",
            help="So many of them, whatever else the machines do; --memory is divided among all. By default one for each CPU.",
        ),
    ] = None
    address: Annotated[
        str | None,
        option("--address", help="The Ray cluster: HOST:PORT or auto; by default RAY_ADDRESS, else one on this machine."),
    ] = None

    def check(self) -> None:
        check_engine(self.engine, self.workers, self.address)
        if self.engine == "local" and self.workers is not None:
            raise UsageError("--engine local is this process alone", "leave --workers out, or use --engine processes")


@dataclass(frozen=True)
class Spread:
    """Who works the queries of a run."""

    engine: Annotated[
        str,
        option("--engine", help="Who answers: local (this process), processes, ray (a cluster), or auto: processes for several workers."),
    ] = "auto"
    workers: Annotated[
        int | None,
        option(
            "--workers",
            metavar="N",
            help="Workers on each machine; --memory is divided among them. By default one a GPU, else one a CPU, or for every "
            "--threads CPUs, as far as each has 1G of --memory and 4 queries; without --instances one.",
        ),
    ] = None
    address: Annotated[
        str | None,
        option("--address", help="The Ray cluster: HOST:PORT or auto; by default RAY_ADDRESS, else one on this machine."),
    ] = None

    batch: Annotated[
        int | None,
        option(
            "--batch",
            metavar="N",
            help="Images proved together, by one worker and without --timeout; by default 1 on the CPU and 100 on GPUs, which share them.",
        ),
    ] = None

    def check(self, timeout: float | None) -> None:
        check_engine(self.engine, self.workers, self.address)
        if self.engine == "local" and (self.workers or 1) != 1:
            raise UsageError("--engine local is one worker", "leave --workers out, or use --engine processes")
        if self.batch is not None and self.batch < 1:
            raise UsageError(f"--batch {self.batch} is out of range", "give 1 or more, or leave it out")
        if (self.batch or 1) > 1 and (self.engine in ("processes", "ray") or (self.workers or 1) > 1):
            raise UsageError("--batch is for one worker in this process", "leave --workers and --engine out; GPUs share a batch")
        if (self.batch or 1) > 1 and timeout is not None:
            raise UsageError("--batch and --timeout exclude each other", "a time limit is for each image: leave one of them out")


@dataclass(frozen=True)
class ResultOptions:
    """Where results go besides the table."""

    json: Annotated[
        str | None, option("--json", metavar="FILE", help="Append each result to FILE as one JSON object a line; - for standard output.")
    ] = None
    csv: Annotated[str | None, option("--csv", metavar="FILE", help="Append each result to FILE as a line of CSV.")] = None
    resume: Annotated[bool, option("--resume", help="Go on with the results files: skip what they hold already.")] = False
    overwrite: Annotated[bool, option("--overwrite", help="Start the results files again.")] = False


@dataclass(frozen=True)
class Competition:
    """The results file of the verification competitions."""

    vnncomp_csv: Annotated[
        str | None,
        option(
            "--vnncomp-csv",
            metavar="FILE",
            help="With --instances: append each result as category,onnx,vnnlib,prepare_time,result,run_time.",
        ),
    ] = None
    category: Annotated[
        str | None, option("--category", metavar="NAME", help="The category named there; by default the folder of the list.")
    ] = None

    def file(
        self, listed: Sequence[Instance], instances: Path | None, network: Path | None, results: ResultOptions
    ) -> CompetitionFile | None:
        from pathlib import Path

        from polytriton.runs.vnncomp import CompetitionFile

        if self.vnncomp_csv is None:
            if self.category is not None:
                raise UsageError("--category belongs to --vnncomp-csv", "name the file with --vnncomp-csv FILE")
            return None
        if instances is None:
            raise UsageError("--vnncomp-csv belongs to --instances", "for other queries there are --json and --csv")
        path = Path(self.vnncomp_csv)
        if any(other and other != "-" and Path(other).resolve() == path.resolve() for other in (results.json, results.csv)):
            raise UsageError("--vnncomp-csv names the same file as --json or --csv", "give them different names")
        category = self.category if self.category is not None else instances.resolve().parent.name
        names = {(str(network or i.onnx), str(i.vnnlib)): i.names for i in listed}
        return CompetitionFile(path, names, category, resume=results.resume, overwrite=results.overwrite)


@dataclass(frozen=True)
class ImageOptions:
    """Balls around images."""

    images: Annotated[
        str | None,
        option(
            "--images",
            metavar="FILE",
            help="Images: .npz (images, labels), .npy, .csv (label first), MNIST's or CIFAR's files, a folder of them or of images.",
        ),
    ] = None
    epsilon: Annotated[
        list[str] | None,
        option("--epsilon", metavar="E,...", help="Radius in [0,1] pixel space: 8/255 or 0.03. Several make a sweep: 0.01,0.02,0.03."),
    ] = None
    norm: Annotated[str, option("--norm", help="The ball's norm: linf, l2 or l1, over all pixels of the image together.")] = "linf"
    mean: Annotated[str, option("--mean", metavar="M,...", help="Normalisation: one number, or one a channel.")] = "0"
    std: Annotated[str, option("--std", metavar="S,...", help="Normalisation: (pixel - mean) / std.")] = "1"
    clip: Annotated[str | None, option("--clip", metavar="LO,HI", help="Cut balls to this pixel range, usually 0,1.")] = None
    start: Annotated[int, option("--start", metavar="N", help="The first image.")] = 0
    end: Annotated[int | None, option("--end", metavar="N", help="One past the last image.")] = None
    label: Annotated[
        int | None, option("--label", help="The label of every image; else the file's labels, else the network's own answers.")
    ] = None
    targets: Annotated[str | None, option("--targets", metavar="L,...", help="Rival labels to exclude; by default all.")] = None
    scale: Annotated[str | None, option("--scale", metavar="S", help="Multiply pixels by this: 1/255.")] = None
    layout: Annotated[str, option("--layout", help="Order of flat pixels: chw or hwc.")] = "chw"
    certify_radius: Annotated[
        bool, option("--certify-radius", help="Find the largest radius proved around each image too, by bisection from --epsilon.")
    ] = False
    radius_tolerance: Annotated[
        str, option("--radius-tolerance", metavar="T", help="How narrow the bracket of a radius must be, as a share of it.")
    ] = "0.01"
    radius_timeout: Annotated[
        float | None, option("--radius-timeout", metavar="S", help="Seconds for each radius, besides --timeout; by default no limit.")
    ] = None

    def balls(self) -> Balls | None:
        from pathlib import Path

        from polytriton.frontend.images import parse_epsilon, parse_fraction, parse_list
        from polytriton.frontend.norm_balls import check_norm

        if self.images is None:
            given = [f"--{f.name.replace('_', '-')}" for f in fields(self) if getattr(self, f.name) not in (f.default, [])]
            if given:
                raise UsageError(f"{given[0]} belongs to --images", "name the images with --images FILE")
            return None
        if not self.epsilon:
            raise UsageError("--images needs a radius", "add --epsilon, for example --epsilon 2/255")
        try:
            clip = None if self.clip is None else parse_list(self.clip)
        except UsageError:
            clip = ()
        if clip is not None and (len(clip) != 2 or clip[0] >= clip[1]):
            raise UsageError(f"--clip {str(self.clip)[:40]} is no range", "give --clip 0,1")
        targets = None if self.targets is None else tuple(_whole(t, "--targets") for t in self.targets.split(","))
        scale = None if self.scale is None else parse_fraction(self.scale, "scale")
        if scale is not None and scale <= 0:
            raise UsageError(f"--scale {self.scale} leaves no image", "for 0..255 pixels give --scale 1/255")
        limits = None if clip is None else (clip[0], clip[1])
        certify = self._certify()
        radii = tuple(sorted({parse_epsilon(e, self.norm) for given in self.epsilon for e in given.split(",")}))
        if certify is not None and len(radii) > 1:
            raise UsageError("--certify-radius finds the largest radius by itself", "give one --epsilon, where its search begins")
        from polytriton.runs.queries import Balls

        return Balls(
            Path(self.images), radii, parse_list(self.mean), parse_list(self.std), limits,
            self.start, self.end, self.label, targets, scale, self.layout, certify, check_norm(self.norm),
        )  # fmt: skip

    def _certify(self) -> Certify | None:
        if not self.certify_radius:
            if self.radius_tolerance != "0.01" or self.radius_timeout is not None:
                raise UsageError("--radius-tolerance and --radius-timeout belong to --certify-radius", "add --certify-radius")
            return None
        from polytriton.frontend.images import parse_fraction
        from polytriton.prove.radius import check
        from polytriton.runs.queries import Certify

        tolerance = parse_fraction(self.radius_tolerance, "tolerance")
        check(tolerance, self.radius_timeout)
        return Certify(str(tolerance), self.radius_timeout)


def _whole(text: str, what: str) -> int:
    if re.fullmatch(r"\s*\d{1,9}\s*", text, re.ASCII) is None:
        raise UsageError(f"{what}: `{text[:40]}` is no label", "give whole numbers from 0, separated by commas")
    return int(text)


def parse_size(text: str) -> int:
    """Bytes: 500M, 2G, 2GiB, 1.5g or a plain number; K, M, G, T are powers of 1024."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*(?:([kmgt])i?)?b?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise UsageError(f"`{text[:40]}` is no size", "write 500M or 2G")
    return int(float(found[1]) * 1024 ** (" kmgt".index(found[2].lower()) if found[2] else 0))
