"""The frame of every page: one file that loads nothing, and no script but its own may run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from polytriton.pages import html
from polytriton.pages.style import STYLE


def beginning(maker: str) -> str:
    """How a page of this maker begins."""
    return f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="{maker}">'


def document(
    maker: str, title: str, under: str, sections: Sequence[tuple[str, str, str]], *,
    style: str = STYLE, script: str = "", skip: str = "", source: str = "",
) -> str:  # fmt: skip
    """`under` stands below the title; sections are a key, a title and a body each, and those without a body are left out. `skip` leads past
    the links, `source` says at the end where all of it comes from."""
    held = [(html.text(key), html.text(name), body) for key, name, body in sections if body]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in held)
    body = "".join(f'<section id="{key}"><h2>{name}</h2>{text}</section>' for key, name, text in held)
    scripts = f"script-src {_hash(script)}; " if script else ""
    policy = f"default-src 'none'; {scripts}style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        f'{beginning(maker)}<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="referrer" content="no-referrer"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<link rel="icon" href="data:,"><title>{html.text(title)}</title><style>{style}</style></head><body>'
        f'{skip}<header><h1>{html.text(title)}</h1>{under}<nav aria-label="Sections">{links}</nav></header><main>{body}</main>'
        + (f"<footer>{html.text(source)}</footer>" if source else "")
        + (f"<script>{script}</script>" if script else "")
        + "</body></html>\n"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
