"""The folder that `--data` names: what is missing in it is said in one sentence."""

from pathlib import Path


def data_folder(data: Path | None, *, task: str, holds: str) -> Path:
    """The folder, or a `ValueError` that says what to put where; `holds` names what the task reads there.

    >>> data_folder(None, task="lstm", holds="train.txt and test.txt")
    Traceback (most recent call last):
    ValueError: task 'lstm' needs data: give --data DIR with train.txt and test.txt in it
    """
    if data is None:
        raise ValueError(f"task {task!r} needs data: give --data DIR with {holds} in it")
    if not data.is_dir():
        raise ValueError(f"--data {data} is not a folder: task {task!r} needs one with {holds} in it")
    return data.resolve()


def first_file(folder: Path, names: tuple[str, ...], *, task: str, holds: str) -> Path:
    """The first of these files that is there."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"{folder} has no {' or '.join(names)}: task {task!r} needs --data DIR with {holds} in it")
