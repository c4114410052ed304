"""Networks here are small: every product is centred, however few terms it has, so that centred charges meet every oracle."""

from __future__ import annotations

import pytest

from polytriton.runtime import centres


@pytest.fixture(autouse=True)
def _every_product_is_centred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(centres, "FEW", 1)
