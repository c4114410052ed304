"""What a list of results says, as plain numbers: one source for the page, the terminal and --json."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from polytriton.results import ENDS, LayerStats
from polytriton.runs.records import VERDICTS, Record
from polytriton.show.words import decimal_below, plural

LONGEST = 64  # characters a number may have before it is taken for none


@dataclass(frozen=True)
class Quantiles:
    count: int
    least: float
    median: float
    p90: float
    most: float
    total: float


@dataclass(frozen=True)
class LayerFacts:
    """Means over the queries that ran this program; `queries` says how many. `seconds` are all of them together."""

    name: str
    stage: str
    queries: int
    neurons: float
    unstable: tuple[float, float] | None
    width: tuple[float | None, float | None]
    rows: float
    left: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class NetworkFacts:
    """`direct`: queries that interval bounds decided, without refining a layer."""

    name: str
    path: str
    queries: int
    verdicts: dict[str, int]
    seconds: float
    direct: int
    layers: list[LayerFacts] = field(default_factory=list)


@dataclass(frozen=True)
class RadiusFacts:
    """Images around which balls of one radius were asked about. All of them are misclassified, verified, falsified or open; `asked`
    were decided by a query at this radius, which took the seconds."""

    network: str
    epsilon: str
    images: int
    misclassified: int
    verified: int
    falsified: int
    open: int
    asked: int
    seconds: float
    norm: str = ""

    @property
    def name(self) -> str:
        return radius_name(self.epsilon, self.norm)


@dataclass(frozen=True)
class Facts:
    """`seconds` and `margin` are of queries that were asked about what the network classifies rightly. `radius_seconds` are of searches
    for largest radii, which took `radius_queries` queries; `total` is the time of all, theirs too. `images` are counted once each."""

    queries: int
    verdicts: dict[str, int]
    seconds: Quantiles | None
    margin: Quantiles | None
    radius: Quantiles | None
    misclassified: int
    ended_by: dict[str, int]
    settings: dict[str, list[str]]
    networks: list[NetworkFacts]
    radii: list[RadiusFacts]
    total: float
    images: int = 0
    radius_seconds: Quantiles | None = None
    radius_queries: int = 0


def facts(records: Sequence[Record]) -> Facts:
    names = network_names(records)
    grouped: dict[str, list[Record]] = {path: [] for path in names}
    for r in records:
        grouped[r.network].append(r)
    radii = [float(p) for r in records if (p := proved_radius(r)) is not None]
    named = ("version", "method", "semantics", "numerics", "dtype", "candidates")
    settings = {key: sorted({str(v) for r in records if (v := getattr(r, key))}) for key in named}
    asked = [r for r in records if r.decided_at is None and not is_misclassified(r)]
    return Facts(
        len(records),
        count_verdicts(records),
        quantiles(r.seconds for r in asked),
        quantiles(r.margin for r in asked if r.margin is not None),
        quantiles(radii),
        count_misclassified(records),
        count_limits(records),
        settings,
        [_network(names[path], path, held) for path, held in grouped.items()],
        radius_facts(records),
        sum(map(whole_seconds, records)),
        len({image_key(r)[1:] for r in records if number(r.epsilon) is not None}),
        quantiles(r.radius.seconds for r in records if r.radius is not None and r.radius.queries),
        sum(r.radius.queries for r in records if r.radius is not None),
    )


def whole_seconds(record: Record) -> float:
    """The time of the query and of the search for its image's largest radius."""
    return record.seconds + (0.0 if record.radius is None else record.radius.seconds)


def title(found: Facts) -> str:
    """What was asked, in words."""
    names = [n.name for n in found.networks]
    subject = " and ".join(names) if len(names) < 3 else plural(len(names), "network")
    if not found.images:
        return f"Properties of {subject}: {plural(found.queries, 'query', 'queries')}"
    radii = list(dict.fromkeys(f.name for f in found.radii))
    others = found.queries - sum(f.images for f in found.radii)
    beside = f", and {plural(others, 'other query', 'other queries')}" if others > 0 else ""
    around = f"epsilon {radii[0]}" if len(radii) == 1 else plural(len(radii), "radius", "radii")
    return f"Robustness of {subject}: {plural(found.images, 'image')} at {around}{beside}"


def is_misclassified(record: Record) -> bool:
    return record.note.startswith("misclassified")


def image_key(record: Record) -> tuple[str, ...]:
    """The same for all radii at which one image was asked about."""
    image = record.image
    return (record.network, record.property) if image is None else (record.network, image.file, str(image.index))


def count_misclassified(records: Iterable[Record]) -> int:
    """Images, each counted once for a network however many radii it was asked at."""
    return len({image_key(r) for r in records if is_misclassified(r)})


def radius_facts(records: Iterable[Record]) -> list[RadiusFacts]:
    """By network and norm, radius after radius. An image that is asked about twice counts once, as its last record says."""
    held: dict[tuple[str, str, Fraction], dict[tuple[str, ...], Record]] = {}
    for r in records:
        if (epsilon := number(r.epsilon)) is not None:
            held.setdefault((r.network, r.norm, epsilon), {})[image_key(r)] = r
    order = {network: k for k, network in enumerate(dict.fromkeys(network for network, _, _ in held))}
    return [_radius(held[key]) for key in sorted(held, key=lambda key: (order[key[0]], *key[1:]))]


def _radius(found: dict[tuple[str, ...], Record]) -> RadiusFacts:
    every = list(found.values())
    right = [r for r in every if not is_misclassified(r)]
    verified, falsified = (sum(r.verdict == v for r in right) for v in ("unsat", "sat"))
    asked = [r for r in every if r.decided_at is None]
    return RadiusFacts(
        every[0].network, every[0].epsilon or "", len(every), len(every) - len(right), verified, falsified,
        len(right) - verified - falsified, len(asked), sum(r.seconds for r in asked), every[0].norm,
    )  # fmt: skip


def count_verdicts(records: Iterable[Record]) -> dict[str, int]:
    """By verdict, in their usual order."""
    counts = Counter(r.verdict for r in records)
    return {v: counts[v] for v in VERDICTS if counts[v]}


def count_limits(records: Iterable[Record]) -> dict[str, int]:
    """How many queries each limit left undecided. Records of earlier versions do not say."""
    counts = Counter(r.ended_by for r in records)
    return {limit: counts[limit] for limit in ENDS[1:] if counts[limit]}


def network_names(records: Iterable[Record]) -> dict[str, str]:
    """A file's name is enough for a network unless two share it."""
    paths = list(dict.fromkeys(r.network for r in records))
    short = Counter(Path(p).name for p in paths)
    return {p: Path(p).name if short[Path(p).name] == 1 else p for p in paths}


def quantiles(values: Iterable[float]) -> Quantiles | None:
    held = sorted(v for v in values if math.isfinite(v))
    if not held:
        return None

    def quantile(share: float) -> float:
        return held[min(len(held) - 1, max(0, math.ceil(share * len(held)) - 1))]

    return Quantiles(len(held), held[0], quantile(0.5), quantile(0.9), held[-1], sum(held))


def number(text: str | None) -> Fraction | None:
    """An exact number of a record; None where it holds none."""
    try:
        return None if text is None or len(text) > LONGEST or "e" in text.lower() else Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def radius_name(epsilon: str, norm: str = "") -> str:
    """A radius as people write it: 8/255, and 7/100 as 0.07; 0.5 in l2."""
    if norm:
        return f"{radius_name(epsilon)} in {norm}"
    exact = number(epsilon)
    if exact is None:
        return epsilon
    short = f"{float(exact):.6g}"
    if number(short) == exact:
        return short
    return f"{exact * 255}/255" if 255 % exact.denominator == 0 else epsilon


def proved_radius(record: Record) -> Fraction | None:
    """The radius of a search, or nothing: a proof at the query's own epsilon is no largest radius."""
    return None if record.radius is None else number(record.radius.proved)


def radius_text(radius: float, digits: int = 4) -> str:
    """A radius that was made a float, rounded down all the same."""
    return decimal_below(Fraction(repr(radius)), digits)


def _network(name: str, path: str, records: list[Record]) -> NetworkFacts:
    direct = sum(bool(r.statistics) and not any(s.stage == "bound" for s in r.statistics) for r in records)
    seconds = sum(map(whole_seconds, records))
    return NetworkFacts(name, path, len(records), count_verdicts(records), seconds, direct, _layers(records))


def _layers(records: Sequence[Record]) -> list[LayerFacts]:
    """Layers come in the order of the first record that has all of them, and the queries around them."""
    grouped: dict[tuple[str, str], list[LayerStats]] = {}
    for r in sorted(records, key=lambda r: -len(r.statistics)):
        for s in r.statistics:
            grouped.setdefault((s.stage, s.name), []).append(s)
    stages = {"interval": 0, "bound": 1, "query": 2}
    keys = sorted(grouped, key=lambda key: stages.get(key[0], 3))
    return [_layer(stage, name, grouped[stage, name]) for stage, name in keys]


def _layer(stage: str, name: str, stats: list[LayerStats]) -> LayerFacts:
    n = len(stats)
    pairs = [s.unstable for s in stats if s.unstable is not None]
    unstable = (_mean(p[0] for p in pairs), _mean(p[1] for p in pairs)) if pairs else None
    widths = [[v for s in stats if (v := s.width[k]) is not None and math.isfinite(v)] for k in (0, 1)]
    width = tuple(_mean(w) if w else None for w in widths)
    left = tuple(sum(s.left[k] for s in stats if k < len(s.left)) / n for k in range(max(len(s.left) for s in stats)))
    return LayerFacts(
        name, stage, n, _mean(s.neurons for s in stats), unstable, (width[0], width[1]), _mean(s.rows for s in stats), left,
        sum(s.seconds for s in stats),
    )  # fmt: skip


def _mean(values: Iterable[float]) -> float:
    held = list(values)
    return sum(v / len(held) for v in held)
