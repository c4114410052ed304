"""The reference pages say what the code says: `python -m tools.reference` writes them anew."""

from __future__ import annotations

import re

import pytest

import polytriton
from tools import messages, reference


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


@pytest.mark.parametrize("name", ["reference-cli.md", "reference-api.md", "reference-errors.md"])
def test_reference_pages_are_up_to_date(name: str, pages: dict[str, str]) -> None:
    """Parsers of other versions show types otherwise; names, defaults and help must agree."""
    assert (reference.DOCS / name).read_text(encoding="utf-8") == pages[name], "run `python -m tools.reference`"


def test_every_public_name_and_every_kind_of_error_is_there(pages: dict[str, str]) -> None:
    for name in polytriton.__all__:
        if callable(getattr(polytriton, name)):
            assert f"\n## {name}\n" in pages["reference-api.md"], name
    kinds = {m.kind for m in messages.find_messages()}
    assert kinds >= {"UsageError", "UnsupportedModel", "UnsupportedProperty", "ArtifactError", "ResourceError", "InvalidIR", "KernelError"}
    listed = re.findall(r"^\| (.*) \| (.*) \|$", pages["reference-errors.md"], re.M)
    assert len(listed) > 400 and all(m and r for m, r in listed)


def test_messages_of_every_way_to_make_one_are_there() -> None:
    """By a class, with a constant of another module, by a method, by one that calls it, by an exception that is caught."""
    by_message = {m.message: m for m in messages.find_messages()}
    for message, remedy in [
        ("--images needs a radius", "add --epsilon, for example --epsilon 2/255"),
        ("{path} unpacks to {found} MiB, over {RATIO} times its size", "unpack it first if you trust it"),
        ("node {self.label} ({self.op}): the bias needs one value an output channel", "`polytriton inspect --operators` lists"),
        ("node {self.label} ({self.op}): alpha is not finite", "`polytriton inspect --operators` lists"),
        ("{name}:{_line(text, at)}: a closing bracket too many", "remove it"),
    ]:
        assert remedy in by_message[message].remedy, message
    assert not any("\0" in m.message + m.remedy for m in by_message.values())
