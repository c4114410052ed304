"""Line breaking of rewritten statements: on one line where they fit, else filled inside their last call."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from itertools import pairwise

WIDTH = 120
NEWLINE_IN_STRING = "\x00"  # stands for a line break inside a string while its statement is moved


def for_people(comment: str) -> str:
    """A comment, unless it speaks to a tool: that has nothing to say in the new text."""
    return "" if comment.lstrip("# ").startswith(("fmt:", "noqa", "type:", "ruff:")) else comment


def dedent(text: str, columns: int) -> str:
    """Move the continuation lines of a statement left."""
    first, *rest = text.split("\n")
    return "\n".join([first, *(re.sub(rf"^ {{0,{columns}}}", "", line) for line in rest)])


def fill(items: Iterable[str], indent: int) -> list[str]:
    """Items, each with its comma, on as few indented lines as they need."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{' ' * indent}{item},")
    return lines


def refit(text: str, column: int) -> str:
    """A statement without comments, strings over several lines or backslashes, broken anew for the column it starts in."""
    joined = _Line(_join(text)).without_idle_commas()
    if column + len(joined) <= WIDTH:
        return joined
    line = _Line(joined)
    inside = line.last_call()
    if inside is None or any(column + 4 + len(item) + 1 > WIDTH for item in inside):
        return text
    return "\n".join([joined[: line.open + 1], *fill(inside, column + 4), " " * column + joined[line.close :]])


def _join(text: str) -> str:
    joined = ""
    for line in (part.strip() for part in text.split("\n")):
        tight = not joined or joined[-1] in "([{" or line[:1] in ")]}"
        joined += line if tight else " " + line
    return joined


class _Line:
    """The brackets of a statement on one line."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [(t.start[1], t.string) for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.string.strip()]
        self.pairs: list[tuple[int, int, list[int]]] = []  # token numbers of brackets, and of the commas directly inside
        stack: list[tuple[int, list[int]]] = []
        for i, (_, token) in enumerate(self.tokens):
            if token in ("(", "[", "{"):
                stack.append((i, []))
            elif token in (")", "]", "}") and stack:
                first, commas = stack.pop()
                self.pairs.append((first, i, commas))
            elif token == "," and stack:
                stack[-1][1].append(i)
        self.open = self.close = 0

    def _is_call(self, first: int) -> bool:
        return self.tokens[first][1] == "(" and first > 0 and self.tokens[first - 1][1].isidentifier()

    def without_idle_commas(self) -> str:
        """The text without commas that only asked for a layout: those before the closing parenthesis of a call."""
        idle = {self.tokens[commas[-1]][0] for first, last, commas in self.pairs if self._is_call(first) and commas[-1:] == [last - 1]}
        return "".join(c for i, c in enumerate(self.text) if i not in idle)

    def last_call(self) -> list[str] | None:
        """The arguments of the call the line ends with."""
        if not self.pairs or self.pairs[-1][1] < len(self.tokens) - 1 or not self._is_call(self.pairs[-1][0]):
            return None
        first, last, commas = self.pairs[-1]
        self.open, self.close = self.tokens[first][0], self.tokens[last][0]
        cuts = [self.open, *(self.tokens[i][0] for i in commas), self.close]
        return [self.text[a + 1 : b].strip() for a, b in pairwise(cuts)]
