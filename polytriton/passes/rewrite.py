"""One rewriting of a Net: named, held against the law of the deployed network, and told to whoever listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from polytriton.errors import PassError
from polytriton.ir.deployed import broken_law
from polytriton.ir.net import Net
from polytriton.limit import go_on

_LISTENERS: ContextVar[tuple[list[str], ...]] = ContextVar("rewritings", default=())


@contextmanager
def trace_rules() -> Iterator[list[str]]:
    """The names of the rules that fire inside, in order."""
    heard: list[str] = []
    token = _LISTENERS.set((*_LISTENERS.get(), heard))
    try:
        yield heard
    finally:
        _LISTENERS.reset(token)


def rewrite(rule: str, before: Net, after: Net) -> Net:
    """`after` without what its output no longer needs, once nothing of the deployed network is lost in it."""
    go_on()
    after = drop_dead(after)
    problem = broken_law(before, after)
    if problem:
        raise PassError(f"rewriting {rule!r} loses part of the deployed network: {problem}", "please report the network")
    for heard in _LISTENERS.get():
        heard.append(rule)
    return after


def drop_dead(net: Net) -> Net:
    """Without the nodes the output does not need."""
    needed = {net.output, net.input.name}
    for n in reversed(net.nodes):
        if n.name in needed:
            needed.update(n.inputs)
    return net if len(needed) == len(net.nodes) else net.rebuild([n for n in net if n.name in needed])
