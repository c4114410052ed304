"""The command line: results on stdout, progress and diagnostics on stderr.

Exit codes: 0 for any verdict, 2 wrong usage or too few resources, 3 a network or property outside the supported set,
4 an internal error, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import polytriton
from polytriton.commands.clock import begin
from polytriton.commands.options import Odd, read
from polytriton.commands.screen import INTERRUPTED, complain, say
from polytriton.errors import USAGE
from polytriton.guard import guard
from polytriton.heap import keep_memory
from polytriton.knobs import knobs, wait_asleep, watch

BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended
COMMANDS = ("compile", "run", "verify", "reach", "check", "report", "supports", "inspect", "opt", "tune")
SHORT = {"--dump-ir": "--dump-ir=all", "-h": "--help"}
QUESTIONS = {"--version": lambda: f"polytriton {polytriton.__version__}", "--name": lambda: "polytriton"}


def __getattr__(name: str) -> Any:
    """`app`, the commands as typer has them: made when first wanted."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from polytriton.commands.parser import make_app

    made = globals()["app"] = make_app({name: find_command(name) for name in COMMANDS})
    return made


def find_command(name: str) -> Callable[..., int]:
    """One command with the fields of its option groups; the others' modules are not loaded."""
    from polytriton.commands.flatten import flatten_groups

    return flatten_groups(getattr(import_module(f"polytriton.commands.{name}"), name))


@guard
def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; whatever goes wrong is one message."""
    given = list(sys.argv[1:] if argv is None else argv)
    begin(whole=argv is None)
    keep_memory()
    wait_asleep()
    watch(say)
    try:
        knobs()  # a wrong setting is said first
        code = _answer(spread(given) or ["--help"])
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("polytriton: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if hasattr(error, "format_message"):  # the option parser's; newer typers bring their own classes for it
            print(f"polytriton: {error.format_message()}\n  remedy: {_remedy(given)}", file=sys.stderr)
            return USAGE
        if isinstance(error, OSError):
            _drop_stdout()
        return complain(error)


def _remedy(given: Sequence[str]) -> str:
    """The line that was meant, where that can be guessed; else where to read."""
    properties = [word for word in given if word.endswith((".vnnlib", ".vnnlib.gz"))]
    if given[:1] == ["run"] and properties and not any(word.startswith("--vnnlib") for word in given):
        return f"polytriton run NET.poly --vnnlib {' '.join(properties)}"
    if given and given[0].endswith((".onnx", ".poly", ".onnx.gz")):
        return " ".join(["polytriton", "verify" if properties else "inspect", *given])
    return " ".join(["polytriton", *(name for name in given[:1] if name in COMMANDS), "--help"])


def _answer(given: Sequence[str]) -> int:
    if len(given) == 1 and given[0] in QUESTIONS:
        print(QUESTIONS[given[0]]())
        return 0
    if given[0] in COMMANDS:
        command = find_command(given[0])
        try:
            wanted = read(command, given[1:])
        except Odd:
            pass
        else:
            return command(**wanted)
    import typer

    from polytriton.commands.parser import make_app

    app = make_app({name: find_command(name) for name in (given[:1] if given[0] in COMMANDS else COMMANDS)})
    try:
        code: Any = typer.main.get_command(app).main(list(given), "polytriton", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    return code if isinstance(code, int) else 0


def _drop_stdout() -> None:
    """What is still buffered could not be written either, and must not fail a second time at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def spread(args: Sequence[str]) -> list[str]:
    """`--vnnlib a b c` as one option a file, a bare `--dump-ir` as `--dump-ir=all`, `-h` as `--help`: the parser knows none of these."""
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
        out.append(SHORT.get(arg, arg))
    return out


if __name__ == "__main__":
    sys.exit(main())
