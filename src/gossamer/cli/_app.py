"""`gossamer` itself: what all commands have in common."""

import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="gossamer",
    help="Decentralized deep learning: train with your neighbours, look inside, know when it pays.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
)


def main() -> None:
    """Run the command line. Bad input is one sentence on standard error and exit code 2."""
    try:
        app()
    except ValueError as error:
        _refuse(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _refuse(message: str) -> NoReturn:
    print(f"gossamer: {message}", file=sys.stderr)
    sys.exit(2)


def _version(asked: bool) -> None:
    if asked:
        from gossamer import __version__

        print(f"gossamer {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
