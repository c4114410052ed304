"""The command line: results on stdout, progress and diagnostics on stderr.

Exit codes: 0 for any verdict, 2 wrong usage or too few resources, 3 a network or property outside the supported set,
4 an internal error, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import polytriton
from polytriton.commands.check import check
from polytriton.commands.compile import compile
from polytriton.commands.groups import grouped
from polytriton.commands.inspect import inspect
from polytriton.commands.opt import opt
from polytriton.commands.report import report
from polytriton.commands.run import INTERRUPTED, run
from polytriton.commands.screen import complain
from polytriton.commands.supports import supports
from polytriton.commands.tune import tune
from polytriton.commands.verify import verify
from polytriton.errors import USAGE
from polytriton.heap import keep_memory
from polytriton.knobs import knobs

BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended
app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, help="Compile neural networks into floating-point-sound robustness verifiers."
)
COMMANDS = {command.__name__: command for command in (compile, run, verify, check, report, supports, inspect, opt, tune)}
for name, command in COMMANDS.items():
    app.command(name)(grouped(command))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"polytriton {polytriton.__version__}")
        raise typer.Exit


def _name(wanted: bool) -> None:
    if wanted:
        print("polytriton")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
    name: Annotated[bool, typer.Option("--name", callback=_name, is_eager=True, help="Show the program's name.")] = False,
) -> None:
    """Carries --version and --name, which programs that drive verifiers ask for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; whatever goes wrong is one message."""
    given = list(sys.argv[1:] if argv is None else argv)
    keep_memory()
    try:
        knobs()  # a wrong setting is said first
        code: Any = typer.main.get_command(app).main(spread(given) or ["--help"], "polytriton", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        print("polytriton: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if hasattr(error, "format_message"):  # the option parser's; newer typers bring their own classes for it
            about = [name for name in given[:1] if name in COMMANDS]
            print(f"polytriton: {error.format_message()}\n  remedy: {' '.join(['polytriton', *about, '--help'])}", file=sys.stderr)
            return USAGE
        if isinstance(error, OSError):
            _drop_stdout()
        return complain(error)


def _drop_stdout() -> None:
    """What is still buffered could not be written either, and must not fail a second time at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def spread(args: Sequence[str]) -> list[str]:
    """`--vnnlib a b c` as one option a file, and a bare `--dump-ir` as `--dump-ir=all`: the parser knows neither form."""
    out: list[str] = []
    files = False
    for k, arg in enumerate(args):
        if arg == "--":
            return [*out, *args[k:]]
        after = out[-1:] == ["--vnnlib"]
        if files and not after and arg.endswith((".vnnlib", ".vnnlib.gz")):
            out.append("--vnnlib")
        elif arg.startswith("-"):
            files = arg == "--vnnlib" or arg.startswith("--vnnlib=")
        elif not after:
            files = False
        out.append("--dump-ir=all" if arg == "--dump-ir" else arg)
    return out


if __name__ == "__main__":
    sys.exit(main())
