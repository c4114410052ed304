"""How a verdict looks wherever people meet it: its word, its sign and its colours, for pages, plots, notebooks and terminals alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """`word` is what the term means; `light` and `dark` are its colours on such grounds, `terminal` its style in a terminal."""

    word: str
    sign: str
    light: str
    dark: str
    terminal: str


LOOKS = {
    "unsat": Look("proved", "✓", "#1c7a46", "#62c48d", "green"),
    "sat": Look("violated", "✗", "#b3261e", "#ff8a80", "red"),
    "unknown": Look("open", "?", "#8a5a00", "#e3b04b", "yellow"),
    "timeout": Look("open", "◷", "#66539a", "#b9a5ee", "magenta"),
    "error": Look("error", "!", "#40464e", "#c2c8d0", "bold"),
}
OTHER = Look("", "●", "#40464e", "#c2c8d0", "")  # of a word that is no verdict


def look(verdict: str) -> Look:
    return LOOKS.get(verdict, OTHER)


def name_verdict(verdict: str) -> str:
    """The word and the term: proved (unsat). An error is its own word."""
    word = look(verdict).word
    return verdict if word in ("", verdict) else f"{word} ({verdict})"


def colours(ground: str) -> str:
    """The colours as variables of a style sheet, for a "light" or a "dark" ground."""
    return " ".join(f"--{verdict}: {getattr(one, ground)};" for verdict, one in LOOKS.items())


def rules() -> str:
    """What a style sheet says of every verdict: the colour of its name, count, bar and curve, and the sign before its name."""
    made = []
    for verdict, one in LOOKS.items():
        code = f"\\{ord(one.sign):x}"
        made.append(
            f'.v.{verdict}, .tally .{verdict} b {{ color: var(--{verdict}); }} .v.{verdict}::before {{ content: "{code}"; }}\n'
            f".stack .{verdict}, .bar.{verdict} {{ fill: var(--{verdict}); }} .curve.{verdict} {{ stroke: var(--{verdict}); }}\n"
        )
    return "".join(made)
