"""The falsifier: samples and projected gradient steps look for a point of the unsafe set; only a replay on the original model says `sat`.

Nothing in the search needs to be sound. A candidate lies in the exact box by construction (`box.py`), runs through the original
model (`replay.py`), and counts only if the property says so in exact rationals.
"""

from polytriton.runtime.attack.box import inner_box
from polytriton.runtime.attack.replay import Replay, UnsafePoint, replayer
from polytriton.runtime.attack.search import QUICK, THOROUGH, Attack, falsify, falsify_all
from polytriton.runtime.attack.target import Aim

__all__ = ["QUICK", "THOROUGH", "Aim", "Attack", "Replay", "UnsafePoint", "falsify", "falsify_all", "inner_box", "replayer"]
