"""Residual joins: every sum or concatenation learns its head, the node at which its branches meet again.

The head is the join's immediate dominator: all paths from the input to the join pass through it, so both branches can
be substituted on their own windows and their coefficients add up there, on the exact union box.
"""

from __future__ import annotations

from polytriton.ir.net import Net

NAME = "joins"
JOINS = ("add", "sub", "concat")


def requires(net: Net) -> str | None:
    return None


def run(net: Net) -> Net:
    import networkx as nx  # by those who compile alone

    graph = nx.DiGraph()
    graph.add_node(net.input.name)
    graph.add_edges_from((i, n.name) for n in net for i in n.inputs)
    heads = nx.immediate_dominators(graph, net.input.name)
    return net.rebuild([n.with_attrs(head=heads[n.name]) if n.op in JOINS else n for n in net])


def ensures(net: Net) -> str | None:
    """Every join has a head that comes before it."""
    order = {n.name: i for i, n in enumerate(net)}
    for n in net:
        if n.op in JOINS and order.get(str(n.attrs.get("head")), order[n.name]) >= order[n.name]:
            return f"%{n.name} has no head before it"
    return None
