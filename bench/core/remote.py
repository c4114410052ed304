"""Rows that a process of its own makes: it is asked for the next one as long as there are any."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator

from bench.core.children import Gone, MeasuringChild
from bench.core.serve import Message, speak_json
from bench.core.table import Row
from polytriton.heap import keep_memory


def rows_of(make: Callable[..., Iterator[Row]], *given: object, seconds: Callable[[], float], threads: int = 0) -> Iterator[Row]:
    """What `make(*given)` yields elsewhere: a function of a module, and what can be pickled. Gone where that process dies, where `make`
    fails, or where a row takes longer than `seconds()`."""
    with MeasuringChild("bench.core.remote", threads=threads) as child:
        answer_of(child, {"start": base64.b64encode(pickle.dumps((make, given))).decode()}, seconds())
        while (row := answer_of(child, {"next": True}, seconds())["row"]) is not None:
            yield row


def answer_of(child: MeasuringChild, question: Message, seconds: float) -> Message:
    found = child.ask(question, seconds)
    if "error" in found:
        raise Gone(found["error"])
    return found


class RemoteRows:
    """{"start": what to make}, and then {"next": true} until the row is null."""

    rows: Iterator[Row] = iter(())

    def answer(self, question: Message) -> Message:
        if "start" in question:
            make, given = pickle.loads(base64.b64decode(question["start"]))
            self.rows = make(*given)
            return {}
        return {"row": next(self.rows, None)}


def handler() -> Callable[[bytes], bytes]:
    keep_memory()  # as the commands do
    return speak_json(RemoteRows().answer)
