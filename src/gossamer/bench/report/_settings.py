"""A page with several settings: which one is shown is chosen at the top, and all that belongs to one follows."""

from collections.abc import Sequence
from html import escape

from ._labels import RULES, Setting


def setting_names(settings: Sequence[Setting]) -> list[str]:
    """What tells each setting from the others.

    >>> setting_names([Setting("digits", 4, "sqrt"), Setting("digits", 8, "sqrt")])
    ['4 workers', '8 workers']
    >>> setting_names([Setting("digits", 4, "sqrt"), Setting("digits", 4, "linear")])[1]
    '4 workers · linear rule'
    """
    tasks, rules = ({getattr(setting, name) for setting in settings} for name in ("task", "rule"))
    return [
        " · ".join(
            [
                *([setting.task] if len(tasks) > 1 else []),
                f"{setting.workers} worker{'s' * (setting.workers != 1)}",
                *([f"{RULES[setting.rule]} rule"] if len(rules) > 1 else []),
            ]
        )
        for setting in settings
    ]


def first_shown(settings: Sequence[Setting]) -> int:
    """The place of the setting that a page opens with: the largest of the first task, where graphs differ most."""
    if not settings:
        return 0
    return max(range(len(settings)), key=lambda i: (settings[i].task == settings[0].task, settings[i].workers, -i))


def chooser(settings: Sequence[Setting]) -> str:
    """The list to choose a setting from; nothing where there is no choice."""
    if len(settings) < 2:
        return ""
    first = first_shown(settings)
    options = "".join(
        f'<option value="{i}"{" selected" if i == first else ""}>{escape(name)}</option>'
        for i, name in enumerate(setting_names(settings))
    )
    return (
        '<nav class="chooser"><label>Shown below <select id="setting" autocomplete="off">'
        f"{options}</select></label></nav>"
    )


def per_setting(texts: Sequence[str], first: int, tag: str = "div") -> str:
    """A text that follows the setting. What several settings share is there once."""
    holders: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        holders.setdefault(text, []).append(place)
    if len(holders) == 1:
        return texts[0]
    return "\n".join(
        f'<{tag} data-settings="{" ".join(map(str, places))}"{"" if first in places else " hidden"}>{text}</{tag}>'
        for text, places in holders.items()
    )
