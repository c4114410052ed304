"""Opened networks are kept, and so are refusals, but not a shortage that may pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from polytriton.errors import PolytritonError, ResourceError, UnsupportedModel
from polytriton.runs import asker
from polytriton.runs.asker import Networks

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits_conv_ibp.onnx"


@pytest.mark.parametrize(
    "error, again", [(ResourceError("no memory", "free some"), True), (UnsupportedModel("an operator", "none"), False)]
)
def test_a_shortage_is_tried_again(error: PolytritonError, again: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path))
    find, asked = asker.find_artifact, 0

    def short(path: Path) -> object:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise error
        return find(path)

    monkeypatch.setattr(asker, "find_artifact", short)
    networks = Networks({})
    with pytest.raises(type(error)):
        networks(EXAMPLE)
    if again:
        assert networks(EXAMPLE).outputs == 10 and networks(EXAMPLE) is networks(EXAMPLE) and asked == 2
    else:
        with pytest.raises(type(error)):
            networks(EXAMPLE)
        assert asked == 1
