"""The loop over queries: hands them to an engine, streams the records. It knows no terminal; `polytriton run` and tests drive it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

import polytriton
from polytriton.explain import explain
from polytriton.guard import guard_class
from polytriton.limit import OutOfTime
from polytriton.runs.asker import Answer, Opened, Settings, failed_answer, late_answer
from polytriton.runs.keys import Keys
from polytriton.runs.queries import Query
from polytriton.runs.records import Record, Sink
from polytriton.runs.sweep import Ladder, imply, ladders
from polytriton.runs.task import Began, Job, Task, TaskEngine, Trouble, Turn

__all__ = ["Answer", "Query", "Run", "Settings"]


@guard_class
@dataclass
class Run:
    """Answers every query, and asks no more of them than must be. `listeners` are called as each ends, after its record is on disk.

    A network is opened before its first query: only then is it known which of them earlier runs have answered. Of an image at several
    radii one is asked at a time.
    """

    engine: TaskEngine
    settings: Settings
    sinks: Sequence[Sink] = ()
    listeners: list[Callable[[Answer], None]] = field(default_factory=list)
    began: Callable[[Query, int], None] = lambda query, more: None
    troubled: Callable[[str], None] = lambda message: None
    _queries: Sequence[Query] = ()
    _ladders: Sequence[Ladder] = ()
    _blanks: dict[int, Record] = field(default_factory=dict)
    _waited: dict[int, float] = field(default_factory=dict)  # seconds for which a query's network was opened
    _answers: dict[int, Answer] = field(default_factory=dict)
    _keys: Keys = field(default_factory=Keys)

    @property
    def answers(self) -> list[Answer]:
        """Those there are, in the order of the queries."""
        return [self._answers[k] for k in sorted(self._answers)]

    def ask(self, queries: Sequence[Query]) -> list[Answer]:
        self._queries, self._ladders = queries, ladders(queries)
        first: dict[str, int] = {}
        for k, query in enumerate(queries):
            first.setdefault(query.network, k)
        for network, k in first.items():
            self.engine.submit(Task(Turn(k, 0), Job(network)))
        for event in self.engine.events():
            if isinstance(event, Trouble):
                self.troubled(event.message)
                continue
            k, asked = event.task.turn.query, event.task.job.query
            if isinstance(event, Began):
                if asked is not None:
                    self.began(asked, event.more)
            elif asked is None:
                self._open_network(event.task.job.network, event.outcome)
            else:
                assert isinstance(event.outcome, Answer)
                self._conclude(k, event.outcome)
        return self.answers

    def exit_code(self) -> int:
        """0, or that of the gravest error met."""
        codes = [explain(a.error).exit_code for a in self._answers.values() if a.error is not None]
        return max(codes, default=0)

    def _open_network(self, network: str, found: Opened | Answer | BaseException) -> None:
        """All queries of the network: held ones are answered, of the others those handed out that must be asked first."""
        own, held = list[int](), dict[int, Record]()
        for k, query in enumerate(self._queries):
            if query.network != network:
                continue
            timeout = self.settings.timeout if self.settings.timeout is not None else query.timeout
            blank = Record(
                network=network,
                property=query.name,
                verdict="error",
                epsilon=query.epsilon,
                norm=query.norm,
                timeout=timeout,
                version=polytriton.__version__,
                onnx=query.listed[0],
                vnnlib=query.listed[1],
            )
            if not isinstance(found, Opened):
                assert isinstance(found, BaseException)
                self._settle(k, late_answer(query, blank) if isinstance(found, OutOfTime) else failed_answer(query, blank, found))
                continue
            self._blanks[k] = self._add_key(query, found, blank)
            own.append(k)
            old = self._find_held(self._blanks[k].key, timeout)
            if old is not None:
                held[k] = old
                self._ladders[k].open.remove(k)
        for k, old in held.items():
            self._conclude(k, Answer(old, resumed=True, query=self._queries[k]), ask=False)
        left = getattr(found, "seconds", 0.0)
        for ladder in dict.fromkeys(self._ladders[k] for k in own):
            first = ladder.next()
            if first is not None:
                self._waited[first] = left
                left = 0.0
                self._submit(first)

    def _submit(self, k: int) -> None:
        query = self._queries[k]
        self.engine.submit(Task(Turn(k, 1), Job(query.network, query, self._blanks[k])))

    def _conclude(self, k: int, answer: Answer, *, ask: bool = True) -> None:
        """Settles a query, and those that its answer decides too; hands out the next of its ladder."""
        self._settle(k, answer)
        told = self._ladders[k].close(k, answer.record.verdict)
        for j in told:
            self._settle(j, Answer(imply(self._blanks[j], answer.record), query=self._queries[j]))
        following = self._ladders[k].next() if ask else None
        if following is not None:
            self._submit(following)

    def _settle(self, k: int, answer: Answer) -> None:
        answer = replace(answer, prepare=answer.prepare + self._waited.pop(k, 0.0))
        for sink in self.sinks:
            held = sink.held.get(answer.record.key) if answer.record.key else None  # what was not opened has no key
            if held is None or not held.final(answer.record.timeout):
                sink.write(answer.record)
        for listener in self.listeners:
            listener(answer)
        self._answers[k] = replace(answer, trail=None)  # many would not fit

    def _add_key(self, query: Query, opened: Opened, blank: Record) -> Record:
        o, key = opened, self._keys.key(query.subject.identity(), opened, self.settings)
        return msgspec.structs.replace(
            blank, sha256=o.sha256, semantics=o.semantics, dtype=o.dtype, numerics=o.numerics, candidates=o.candidates, method=o.method,
            key=key,
        )  # fmt: skip

    def _find_held(self, key: str, timeout: float | None) -> Record | None:
        """The final record of this query in the first results file; JSON comes first and holds the most."""
        files = [sink for sink in self.sinks if sink.resumable]
        old = files[0].held.get(key) if files else None
        return old if old is not None and old.final(timeout) else None
