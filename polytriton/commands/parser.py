"""The commands as typer has them: for help, and to say what is wrong with a line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Annotated, Any, get_args

import typer

import polytriton
from polytriton.commands.options import Argument, Option


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"polytriton {polytriton.__version__}")
        raise typer.Exit


def _show_name(wanted: bool) -> None:
    if wanted:
        print("polytriton")
        raise typer.Exit


def make_app(commands: dict[str, Callable[..., int]]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,  # frames and colours for people; a pipe need not wait for them
        help="Compile neural networks into floating-point-sound robustness verifiers.",
    )
    for name, command in commands.items():
        app.command(name)(_as_typer(command))

    @app.callback()
    def _root(
        version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")] = False,
        name: Annotated[bool, typer.Option("--name", callback=_show_name, is_eager=True, help="Show the program's name.")] = False,
    ) -> None:
        """Carries --version and --name, which programs that drive verifiers ask for."""

    return app


def _as_typer(command: Callable[..., int]) -> Callable[..., int]:
    """The command with typer's own descriptions of what it takes."""

    def call(**given: Any) -> int:
        return command(**given)

    own = signature(command)
    seen = [p.replace(annotation=_describe(p)) for p in own.parameters.values()]
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = own.replace(parameters=seen)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in seen}
    return call


def _describe(p: Parameter) -> Any:
    plain, about = get_args(p.annotation)
    if isinstance(about, Argument):
        return Annotated[plain, typer.Argument(metavar=about.metavar, help=about.help, show_default=False)]
    assert isinstance(about, Option)
    return Annotated[plain, typer.Option(*about.names, help=about.help, metavar=about.metavar)]
