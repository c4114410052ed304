"""A Python source text with its syntax tree and tokens under one system of character offsets."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from functools import lru_cache

from polytriton.kernels.partial.layout import for_people

_LAYOUT = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}


class SpecialiseError(ValueError):
    """A library kernel the specialiser refuses: which function, which line, and what to write instead."""


class KernelSource:
    """Text, lines, tree and tokens. All positions are character offsets into `text`; lines count from 1."""

    def __init__(self, text: str, origin: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.origin = origin
        try:
            self.tree = ast.parse(self.text)
        except SyntaxError as error:
            raise SpecialiseError(f"{origin}, line {error.lineno}: {error.msg}; the source of a kernel must be valid Python") from error
        self.lines = self.text.split("\n")
        self._line_starts = [0]
        for line in self.lines:
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)
        self.tokens: list[tuple[int, int, str]] = []  # start, end, text; without comments and layout
        self.comments: dict[int, int] = {}  # line -> offset of its comment
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            start = self._line_starts[token.start[0] - 1] + token.start[1]
            if token.type == tokenize.COMMENT:
                self.comments[token.start[0]] = start
            elif token.type not in _LAYOUT:
                self.tokens.append((start, self._line_starts[token.end[0] - 1] + token.end[1], token.string))
        self._token_starts = [token[0] for token in self.tokens]
        self._outer: dict[ast.expr, tuple[int, int]] = {}

    def _offset(self, line: int, column: int) -> int:
        text = self.lines[line - 1]
        return self._line_starts[line - 1] + (column if text.isascii() else len(text.encode()[:column].decode()))

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> tuple[int, int]:
        """Where a node begins and ends, without parentheses that only group it."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def outer(self, node: ast.expr) -> tuple[int, int]:
        """`span` widened by the parentheses that do nothing but group this very expression."""
        if node not in self._outer:
            self._outer[node] = self._widened(*self.span(node))
        return self._outer[node]

    def _widened(self, start: int, end: int) -> tuple[int, int]:
        first, last = bisect_left(self._token_starts, start), bisect_left(self._token_starts, end)
        while first > 0 and last < len(self.tokens) and self.tokens[first - 1][2] == "(" and self.tokens[last][2] == ")":
            before = self.tokens[first - 2][2] if first > 1 else ""
            if before[-1:] in (")", "]", '"', "'") or (before.isidentifier() and not keyword.iskeyword(before)):
                break  # the parentheses of a call
            first, last = first - 1, last + 1
            start, end = self.tokens[first][0], self.tokens[last - 1][1]
        return start, end

    def line_of(self, offset: int) -> int:
        return bisect_right(self._line_starts, offset)

    def rest_of_line(self, offset: int) -> str:
        """What follows on the line: empty, or the comment with the spaces before it."""
        line = self.line_of(offset)
        return self.text[offset : self._line_starts[line] - 1].rstrip()

    def header_end(self, body: list[ast.stmt]) -> int:
        """Offset just after the colon that opens this block."""
        return self.tokens[bisect_left(self._token_starts, self.span(body[0])[0]) - 1][1]

    def is_comment(self, line: int) -> bool:
        """Whether the line holds a comment and nothing else."""
        return line in self.comments and self.lines[line - 1].lstrip().startswith("#")

    def comment(self, line: int) -> str:
        """The comment on a line, from its `#`, or nothing."""
        return self.rest_of_line(self.comments[line]) if line in self.comments else ""

    def has_comment(self, first: int, last: int) -> bool:
        return any(line in self.comments for line in range(first, last))

    def leading_comments(self, line: int) -> int:
        """The first line of the comment block that touches `line` from above, or `line` itself."""
        while line > 1 and self.is_comment(line - 1):
            line -= 1
        return line

    def verbatim(self, node: ast.stmt) -> str:
        """A top-level statement as written, with its decorators and the comments directly above, without those for tools."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        assert node.end_lineno is not None
        lines = []
        for number in range(self.leading_comments(first), node.end_lineno + 1):
            text, comment = self.lines[number - 1], self.comment(number)
            lines.append((text.removesuffix(comment) + for_people(comment) if comment else text).rstrip())
        return "\n".join(lines)

    def substitute(self, start: int, end: int, children: Iterable[ast.expr], text_of: Callable[[ast.expr], str]) -> str:
        """The text from start to end with each child replaced by its new text."""
        pieces, at = [], start
        for begin, finish, child in sorted(((*self.outer(child), child) for child in children), key=lambda part: part[0]):
            pieces += [self.text[at:begin], text_of(child)]
            at = finish
        return "".join([*pieces, self.text[at:end]])


@lru_cache(maxsize=64)
def parse_source(text: str, origin: str) -> KernelSource:
    """A module's source, parsed once for all kernels taken from it."""
    return KernelSource(text, origin)


# What a tree says of a node is asked anew for every kernel taken from it, and `parse_source` keeps the trees: it is found once.
_KEPT = 1 << 16  # nodes; the library's modules have fewer


@lru_cache(_KEPT)
def subexpressions(node: ast.AST) -> tuple[ast.expr, ...]:
    """The expressions directly below a node; an f-string is a leaf, its inside has no dependable positions before Python 3.12."""
    if isinstance(node, ast.JoinedStr):
        return ()
    below = (child.value if isinstance(child, ast.keyword) else child for child in ast.iter_child_nodes(node))
    return tuple(child for child in below if isinstance(child, ast.expr))


@lru_cache(_KEPT)
def names_in(node: ast.expr) -> frozenset[str]:
    """Every name an expression mentions."""
    return frozenset(part.id for part in ast.walk(node) if isinstance(part, ast.Name))


@lru_cache(_KEPT)
def calls_in(node: ast.expr | ast.stmt) -> tuple[ast.Call, ...]:
    """The calls in an expression or statement, itself included."""
    return tuple(part for part in ast.walk(node) if isinstance(part, ast.Call))


@lru_cache(_KEPT)
def expression_text(node: ast.expr) -> str:
    """An expression as plain text."""
    return ast.unparse(node)
