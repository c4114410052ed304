"""A table of the known attacks: what is true, what a round-to-nearest verifier says, what polytriton says.

    python -m tests.attacks [--only TEXT]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from polytriton.api import Verifier
from tests.attacks.constructions import Attack, every
from tests.attacks.nearest import Nearest
from tests.oracle.adversary import Goal, Opponent


def execution(attack: Attack) -> float:
    """The form's value in the deployment that the attack aims at."""
    assert attack.deployed is not None
    goal = Goal(attack.net.output, -attack.forms)
    run = Opponent(attack.net).run(attack.at[None], goal, attack.deployed, np.random.default_rng(0))
    return float(run[attack.net.output][0] @ attack.forms[0])


def margin(attack: Attack, semantics: str, dtype: str = "auto", candidates: str = "all") -> float:
    verifier = Verifier.from_net(attack.net, semantics=semantics, dtype=dtype, candidates=candidates)
    return float(verifier.margins(attack.lo[None], attack.hi[None], attack.forms)[0, 0])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description="What verifiers say of the known attacks.")
    parser.add_argument("--only", default="", help="attacks whose name holds this text")
    only = parser.parse_args(argv).only
    columns = ("float32", "float64")
    head = [f"{'exact':>12}", f"{'deployed':>12}", *(f"{'nearest ' + c:>16}" for c in columns), f"{'real':>12}", f"{'float32':>12}"]
    print(f"{'attack':42}", *head)
    for attack in (a for a in every() if only in a.name):
        deployed = f"{execution(attack):12.4g}" if attack.deployed else " " * 12
        naive = " ".join(f"{Nearest(attack.net, np.dtype(c)).margins(attack.lo, attack.hi, attack.forms)[0]:16.4g}" for c in columns)
        found = " ".join(f"{margin(attack, s):12.4g}" for s in ("real", "float32"))
        print(f"{attack.name:42.42} {float(attack.exact()):12.4g} {deployed} {naive} {found}")


if __name__ == "__main__":
    main()
