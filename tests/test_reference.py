"""The reference pages say what the code says: `python -m tools.reference` writes them anew."""

from __future__ import annotations

import re

import pytest

import polytriton
from tools import reference


@pytest.mark.parametrize("name", ["reference-cli.md", "reference-api.md", "reference-errors.md"])
def test_reference_pages_are_up_to_date(name: str) -> None:
    """Parsers of other versions show types otherwise; names, defaults and help must agree."""
    assert (reference.DOCS / name).read_text(encoding="utf-8") == reference.pages()[name], "run `python -m tools.reference`"


def test_every_public_name_and_every_kind_of_error_is_there() -> None:
    made = reference.pages()
    for name in polytriton.__all__:
        if callable(getattr(polytriton, name)):
            assert f"\n## {name}\n" in made["reference-api.md"], name
    kinds = {m.kind for m in reference._messages()}
    assert kinds >= {"UsageError", "UnsupportedModel", "UnsupportedProperty", "ArtifactError", "ResourceError", "InvalidIR", "KernelError"}
    messages = re.findall(r"^\| (.*) \| (.*) \|$", made["reference-errors.md"], re.M)
    assert len(messages) > 150 and all(m and r for m, r in messages)
