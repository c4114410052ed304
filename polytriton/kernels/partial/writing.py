"""The text of a function under its constants, cut from the library's own: comments stay with the statements they head."""

from __future__ import annotations

import ast

from polytriton.kernels.partial.function import Function
from polytriton.kernels.partial.layout import NEWLINE_IN_STRING, WIDTH, dedent, fill, for_people, refit


def write(function: Function) -> str:
    """Comments above, decorator, signature and body."""
    return "\n".join([*_head(function), *_FunctionWriter(function).body()]).replace(NEWLINE_IN_STRING, "\n")


def _head(function: Function) -> list[str]:
    """The comments inside the signature stay with the parameters they follow."""
    node, source = function.node, function.source
    first = node.decorator_list[0].lineno
    above = [source.lines[line - 1] for line in range(source.leading_comments(first), first)]
    rows: dict[int, list[str]] = {}
    for argument in node.args.args:
        if argument.arg in function.parameters:
            rows.setdefault(argument.lineno, []).append(argument.arg)
    groups: list[tuple[list[str], str]] = []
    for line, names in rows.items():
        if groups and not groups[-1][1]:
            names = [*groups.pop()[0], *names]
        groups.append((names, for_people(source.comment(line))))
    short = f"def {function.name}({', '.join(function.parameters)}):"
    if len(short) <= WIDTH and not any(comment for _, comment in groups):
        return [*above, "@triton.jit", short]
    lines = [*above, "@triton.jit", f"def {function.name}("]
    for names, comment in groups:
        lines += fill(names, 4)
        lines[-1] += _tail(comment)
    return [*lines, "):"]


class _FunctionWriter:
    def __init__(self, function: Function) -> None:
        self.function, self.source = function, function.source

    def body(self) -> list[str]:
        body = self.function.node.body
        begin = self.source.line_of(self.source.header_end(body) - 1) + 1
        return self._block(body, begin, self.function.node.end_lineno or begin, 0)

    def _block(self, body: list[ast.stmt], begin: int, end: int, left: int) -> list[str]:
        """The lines of a block moved `left` columns, `pass` where nothing is left; comments go with the paragraph they head."""
        alive = self.function.alive
        statements = list(self.function.reachable(body))
        if not any(map(alive, statements)):
            return [" " * (body[0].col_offset - left) + "pass"]
        entries: list[str] = []
        ends = [self.function.extent(stmt) for stmt in statements]
        for i, stmt in enumerate(statements):
            heading = max(self.source.leading_comments(stmt.lineno), begin)
            entries += self._lines(begin, heading, left)
            paragraph = [stmt]
            for following, above in zip(statements[i + 1 :], ends[i:], strict=False):
                if following.lineno != above + 1 or isinstance(paragraph[-1], (ast.If, ast.For, ast.While)):
                    break
                paragraph.append(following)
            if any(map(alive, paragraph)):
                entries += self._lines(heading, stmt.lineno, left)
            if alive(stmt):
                entries += self._statement(stmt, left)
            begin = ends[i] + 1
        if len(statements) == len(body):
            entries += self._lines(begin, end + 1, left)
        while not entries[-1].strip():
            entries.pop()
        return [e for i, e in enumerate(entries) if e.strip() or (i and entries[i - 1].strip())]

    def _lines(self, begin: int, end: int, left: int) -> list[str]:
        """Comments and blank lines as they are."""
        return [dedent("\n" + line.rstrip(), left)[1:] for line in self.source.lines[begin - 1 : end - 1]]

    def _statement(self, stmt: ast.stmt, left: int) -> list[str]:
        if isinstance(stmt, ast.If):
            return self._if(stmt, left)
        start, end = self.source.span(stmt)
        block: list[str] = []
        if isinstance(stmt, (ast.For, ast.While)):
            end = self.source.header_end(stmt.body)
            block = self._block(stmt.body, self.source.line_of(end - 1) + 1, self.function.extent(stmt), left)
        text = self.source.substitute(start, end, self.function.expressions(stmt), self.function.fold.free_text)
        return [self._placed(text, start, end, stmt.col_offset, left) + _tail(self.source.rest_of_line(end)), *block]

    def _placed(self, text: str, start: int, end: int, column: int, left: int) -> str:
        """The new text of a statement or header in its new column; broken anew where it differs from the old one, start to end."""
        before = self.source.text[start:end]
        commented = "\n" in text and self.source.has_comment(self.source.line_of(start), self.source.line_of(end - 1))
        if text == before or commented or NEWLINE_IN_STRING in text or "\\\n" in text:
            return " " * (column - left) + dedent(text, left)
        fitted = refit(text, column - left)
        return " " * (column - left) + (dedent(text, left) if fitted == text else fitted)

    def _if(self, stmt: ast.If, left: int) -> list[str]:
        entries: list[str] = []
        indent = " " * (stmt.col_offset - left)
        for i, arm in enumerate(self.function.arms(stmt)):
            begin = self.source.line_of(arm.header - 1) + 1
            said = _tail(self.source.rest_of_line(arm.header))
            if arm.test is None and i == 0:
                deeper = arm.body[0].col_offset - stmt.col_offset
                return ([indent + said.strip()] if said else []) + self._block(arm.body, begin, arm.end, left + deeper)
            header = f"{indent}else:"
            if arm.test is not None:
                start = self.source.outer(arm.test)[0]
                test = f"{'elif' if i else 'if'} {self.function.fold.free_text(arm.test)}:"
                header = self._placed(test, start, arm.header, stmt.col_offset, left)
            entries += [header + said, *self._block(arm.body, begin, arm.end, left)]
        return entries


def _tail(comment: str) -> str:
    said = for_people(comment.strip())
    return f"  {said}" if said else ""
