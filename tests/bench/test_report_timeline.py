"""Who waits for whom, as the report draws it."""

import re
from pathlib import Path

from gossamer.bench import Experiment, run


def test_what_is_not_drawn_is_said(tmp_path: Path) -> None:
    page = run(Experiment(workers=12, seeds=1, epochs=1), tmp_path).report.read_text()
    assert "Drawn are 4 of 6 graphs or methods and 8 of 12 workers." in page


def test_a_method_that_begins_as_all_reduce_is_drawn_so(tmp_path: Path) -> None:
    page = run(Experiment(workers=4, seeds=1, epochs=1, algorithm="listening-ada"), tmp_path).report.read_text()
    drawn = re.findall(r'<figure class="timeline.*?</figure>', page, re.DOTALL)
    assert len(drawn) == 2
    all_reduce, listening = (re.findall("<rect.*?>", figure) for figure in drawn)
    assert all_reduce == listening
    assert "Drawn are" not in page
