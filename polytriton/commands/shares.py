"""`polytriton check --workers N`: a certificate's leaves in shares, each confirmed by the checker, perhaps in several processes.

A share is some subtrees. Whoever has one walks from the roots down to its leaves and proves again what lies above them, so that no process
believes another in more than that it ran the checker. Every leaf of every tree must be in an answer, once; nothing else makes a verdict.
Shares depend on the trees alone: whatever N is, the same arrays are multiplied, and margins are the same.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from polytriton import checker
from polytriton.certificate.guide import Guide, enough
from polytriton.checker import Checked, Progress, Tree
from polytriton.checker_files import Array, Pieces, Refused, Unsupported
from polytriton.checker_slopes import StillOpen
from polytriton.errors import PolytritonError, ResourceError
from polytriton.workers.pool import Ended, Missing, Pool, Taken
from polytriton.workers.process import JobFailed, Process, WorkerLost, environment
from polytriton.workers.processors import processors

MOST, LEAST = 64, 24  # shares; nodes of a subtree that is divided for each of those above it, which are walked once more
FEW = 4e8  # nodes times squared cells, about a second: below it no process is started unasked
Share = dict[int, Array]  # by tree some leaves


class Snapshot:
    """A file as it was when it was read, for as long as the check takes: as much of a path as the checker uses."""

    def __init__(self, data: bytes, suffix: str) -> None:
        self.data, self.suffix = data, suffix

    def read_bytes(self) -> bytes:
        return self.data


def divide(trees: list[Tree]) -> list[Share]:
    """All leaves: the largest subtree is divided while that costs little; of many trees, neighbours go together."""
    sizes, waiting, done = list[Array](), list[tuple[int, int, int, int]](), list[tuple[int, int]]()
    for b, tree in enumerate(trees):
        size = np.ones(len(tree.child), dtype=np.int64)
        for k in np.flatnonzero(tree.child >= 0)[::-1].tolist():
            size[k] += size[tree.child[k]] + size[tree.child[k] + 1]
        sizes.append(size)
        waiting.append((-int(size[0]), b, 0, 1))
    heapq.heapify(waiting)
    while waiting:
        size_, b, k, depth = heapq.heappop(waiting)
        if len(waiting) + len(done) + 2 > MOST or -size_ < LEAST * depth or trees[b].child[k] < 0:
            done.append((b, k))
            continue
        for below in (int(trees[b].child[k]), int(trees[b].child[k]) + 1):
            heapq.heappush(waiting, (-int(sizes[b][below]), b, below, depth + 1))
    return _group(trees, sizes, sorted(done))


def _group(trees: list[Tree], sizes: list[Array], subtrees: list[tuple[int, int]]) -> list[Share]:
    owners = [np.full(len(tree.child), -1) for tree in trees]
    total, before = sum(int(sizes[b][k]) for b, k in subtrees), 0
    many = len(subtrees) > MOST
    for n, (b, k) in enumerate(subtrees):
        owners[b][k] = before * MOST // total if many else n
        before += int(sizes[b][k])
    shares: dict[int, Share] = {}
    for b, (tree, owner) in enumerate(zip(trees, owners, strict=True)):
        for k in np.flatnonzero(tree.child >= 0).tolist():
            if owner[k] >= 0:
                owner[[tree.child[k], tree.child[k] + 1]] = owner[k]
        leaves = np.flatnonzero(tree.child < 0)
        for n in np.unique(owner[leaves]).tolist():
            shares.setdefault(n, {})[b] = leaves[owner[leaves] == n]
    return [shares[n] for n in sorted(shares)]


def ancestors(child: Array, leaves: Array) -> Array:
    """Which nodes of a tree have some of these ends below them, or are among them. `child`: the first of each node's two, or -1."""
    parent, wanted = np.zeros(len(child), dtype=np.int64), np.zeros(len(child), dtype=bool)
    parent[1::2] = parent[2::2] = np.flatnonzero(child >= 0)
    wanted[leaves] = True
    for k in range(len(wanted) - 1, 0, -1):
        wanted[parent[k]] |= wanted[k]
    return wanted


def draw_leaves(count: int, trees: list[Tree]) -> list[Array]:
    """So many leaves of all trees, at random, and what is above them."""
    ends = np.flatnonzero(np.concatenate([tree.child < 0 for tree in trees]))
    chosen = np.random.default_rng().permutation(ends)[:count]
    looked = np.split(np.isin(np.arange(sum(sizes := [len(t.child) for t in trees])), chosen), np.cumsum(sizes)[:-1])
    return [ancestors(tree.child, some) for tree, some in zip(trees, looked, strict=True)]


@dataclass
class Reading:
    """A certificate that was read, and not yet followed."""

    semantics: str
    prover: Any
    pieces: Pieces
    trees: list[Tree]
    shares: list[Share]

    @classmethod
    def read(cls, files: list[Snapshot]) -> Reading:
        semantics, prover, pieces, trees = checker.plain(checker.open_files)(*(cast(Path, f) for f in files))
        return cls(semantics, prover, pieces, trees, divide(trees))

    @property
    def nodes(self) -> int:
        return sum(len(t.child) for t in self.trees)

    def confirm(self, k: int, told: Callable[[int], None]) -> dict[int, list[float]]:
        """By tree of the k-th share the least margins, in the order of its pieces; or Refused."""
        groups, least, before = list(self.pieces.items()), dict[int, list[float]](), 0
        guide = Guide(enough(sum(2 * len(leaves) for leaves in self.shares[k].values())), cuts=True)
        for t, leaves in self.shares[k].items():
            tree = self.trees[t]
            wanted, so_far = ancestors(tree.child, leaves), partial(_further, told, before)
            found = checker.plain(checker.follow)(self.prover, *groups[tree.box], tree, wanted, so_far, guide)
            least[t] = [found[p] for p in tree.own]
            before += int(wanted.sum())
        return least


def _further(told: Callable[[int], None], before: int, done: int) -> None:
    told(before + done)


Answer = tuple[int, dict[int, list[float]], dict[int, list[int]]]  # which share, by tree its margins and the leaves that were looked at


def confirm(network: Path, prop: Path, certificate: Path, workers: int | None, progress: Progress) -> Checked:
    """What the certificate proves, or Refused, as `checker.check` has it. `workers`: how many processes; None: as the work demands."""
    files = [Snapshot(f.read_bytes(), f.suffix) for f in (network, prop, certificate)]
    work = Reading.read(files)
    count = min(len(work.shares), fitting(work) if workers is None else workers)
    answers = _ask(work, files, count) if count > 1 else _here(work, progress)
    least = {(b, p): math.inf for b, group in enumerate(work.pieces.values()) for p in range(len(group))}
    open_ = [tree.child < 0 for tree in work.trees]
    walked = 0
    with closing(answers):
        for k, margins, looked in answers:
            for b, leaves in looked.items():
                at = np.array(leaves, dtype=np.int64)
                if len(np.unique(at)) < len(at) or not open_[b][at].all():
                    raise RuntimeError(f"share {k}: a leaf that is none, or was confirmed before")
                open_[b][at] = False
                walked += 2 * len(at)
                at_pieces = [(work.trees[b].box, p) for p in work.trees[b].own]
                least |= {place: min(least[place], m) for place, m in zip(at_pieces, margins[b], strict=True)}
            progress("nodes", min(walked, work.nodes), work.nodes)
    if any(some.any() for some in open_):
        raise RuntimeError("leaves of the certificate were looked at by nobody")
    return Checked(work.semantics, list(least.values()), work.nodes, (work.nodes + len(work.trees)) // 2)


def fitting(work: Reading) -> int:
    """How many processes the work is worth."""
    few = work.nodes * sum(work.prover.net.sizes) ** 2 < FEW
    return 1 if few else processors()


def _here(work: Reading, progress: Progress) -> Generator[Answer, None, None]:
    walked = 0
    for k, share in enumerate(work.shares):
        margins = work.confirm(k, partial(_further, lambda n: progress("nodes", min(n, work.nodes), work.nodes), walked))
        walked += 2 * sum(map(len, share.values()))
        yield k, margins, {b: leaves.tolist() for b, leaves in share.items()}


# ---- several processes ----------------------------------------------------------------------------------------------


class Confirmer(Process):
    """A process that is given the files first, then numbers of shares."""

    def __init__(self, files: bytes) -> None:
        super().__init__(__name__, env=environment(1))
        self._files = files

    def start(self) -> None:
        super().start()
        self.exchange(self._files)

    def ask(self, k: int) -> Any:
        return json.loads(self.exchange(json.dumps(k).encode()))


def _ask(work: Reading, files: list[Snapshot], count: int) -> Generator[Answer, None, None]:
    """Whoever is free takes the next share; the processes end with this, however it ends."""
    pool: Pool[int, Any] = Pool([Confirmer(_pack(files)) for _ in range(count)])
    for k in range(len(work.shares)):
        pool.submit(k)
    try:
        for event in pool.events():
            if isinstance(event, Taken):
                continue
            error = event.why if isinstance(event, Missing) else event.error
            if error is not None:
                raise _rebuild_error(error)
            assert isinstance(event, Ended) and event.answer is not None
            margins, leaves = ({int(b): v for b, v in event.answer[name].items()} for name in ("margins", "leaves"))
            if {b: v.tolist() for b, v in work.shares[event.job].items()} != leaves:
                raise RuntimeError(f"a process looked at other leaves than those of share {event.job}")
            yield event.job, margins, leaves
    finally:
        pool.close()


def _rebuild_error(error: Exception) -> Exception:
    """What a process met, as this one would have."""
    if isinstance(error, JobFailed):
        kinds = {kind.__name__: kind for kind in (Refused, StillOpen, Unsupported, MemoryError)}
        return kinds.get(error.kind, RuntimeError)(error.said)
    if isinstance(error, WorkerLost | OSError):
        lost: PolytritonError = ResourceError(f"a process of the check is lost: it {error}", "check in one process: --workers 1")
        return lost
    return error


def _pack(files: list[Snapshot]) -> bytes:
    return json.dumps([[f.suffix, len(f.data)] for f in files]).encode() + b"\n" + b"".join(f.data for f in files)


def _unpack(data: bytes) -> list[Snapshot]:
    end, files = data.index(b"\n") + 1, []
    for suffix, size in json.loads(data[:end]):
        files.append(Snapshot(data[end : end + size], suffix))
        end += size
    return files


def handler() -> Callable[[bytes], bytes]:
    """The far end."""
    work = list[Reading]()

    def answer(data: bytes) -> bytes:
        if not work:
            work.append(Reading.read(_unpack(data)))
            return b""
        k = int(json.loads(data))
        leaves = {b: v.tolist() for b, v in work[0].shares[k].items()}
        return json.dumps({"margins": work[0].confirm(k, lambda n: None), "leaves": leaves}).encode()

    return answer
