"""`gossamer report`: several experiments on one page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ._app import app

if TYPE_CHECKING:
    pass


@app.command(epilog="Example: gossamer report results/digits-16-* --out all.html --csv all.csv")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `gossamer bench` has written.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write the page into this HTML file.", show_default=False)] = None,
    csv: Annotated[
        Path | None, typer.Option(help="Also write all rows into this CSV file.", show_default=False)
    ] = None,
) -> None:
    """Join the results of several experiments in one report: sizes, tasks, methods side by side. Trains nothing."""
    from rich.console import Console

    from gossamer.bench.joined import join

    for option, file, suffix in (("--out", out, ".html"), ("--csv", csv, ".csv")):
        if file is not None and file.suffix != suffix:
            raise ValueError(f"{option} {file}: give a file that ends in {suffix}")
    try:
        joined = join(runs, page=out, table=csv)
    except OSError as error:
        raise ValueError(
            f"cannot write {error.filename or 'the report'}: {error.strerror}; give another file"
        ) from error
    console = Console()
    console.print(f"report: [bold]{joined.page}[/bold] ({len(joined.rows)} runs)", soft_wrap=True)
    for num, why in ((joined.unfinished, "not over yet"), (joined.repeated, "there twice")):
        if num:
            console.print(f"left out: {num} {'run' if num == 1 else 'runs'}, {why}")
    if csv is not None:
        console.print(f"table: [bold]{csv}[/bold]", soft_wrap=True)
