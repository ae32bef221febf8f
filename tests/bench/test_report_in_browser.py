"""The report in a real browser: it draws, it answers to clicks, it fits, it asks nobody for anything."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_runs import result, results
from selenium import webdriver
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from gossamer.bench import Experiment
from gossamer.bench.report import write_report
from gossamer.bench.sharding import dealt_classes

PLOTS = ("accuracy", "final", "consensus", "dispersion", "scatter", "ranks", "tensors", "degree", "bytes")
ACROSS = ("scale", "rules")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


EXPERIMENT = Experiment(graphs=("complete", "ring", "ada"), workers=16, seeds=2, epochs=12)
ENDS = {"all-reduce": (0.98, 0.96), "complete": (0.97, 0.98), "ring": (0.90, 0.91), "ada": (0.96, 0.97)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, EXPERIMENT, results(EXPERIMENT, ENDS))
    return path


@pytest.fixture(scope="module")
def page_of_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sizes and two rules; the centralized baseline and Ada were not run at every size."""
    experiment = replace(EXPERIMENT, workers=(4, 8, 16), lr_rules=("sqrt", "linear"))
    runs = [r for r in results(experiment, ENDS) if r.run.workers == 16 or r.run.graph != "ada"]
    path = tmp_path_factory.mktemp("sizes") / "report.html"
    write_report(path, experiment, runs)
    return path


@pytest.fixture(scope="module")
def page_of_divergence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The torus never came to its end, Ada with one of two seeds; all send different numbers of bytes."""
    experiment = replace(EXPERIMENT, graphs=("torus", "ring", "complete", "ada"))
    sent = {"all-reduce": 2e6, "ring": 900e3, "complete": 15e6, "ada": 8e6}
    lost = {"torus": (0, 1), "ada": (1,)}
    runs = [
        result(run, 0.1, num_epochs=0, reason="the loss became nan")
        if run.seed in lost.get(run.label, ())
        else result(run, ENDS[run.label][run.seed], more={"bytes_sent": sent[run.label]})
        for run in experiment.runs()
    ]
    path = tmp_path_factory.mktemp("divergence") / "report.html"
    write_report(path, experiment, runs)
    return path


@pytest.fixture(scope="module")
def page_of_time(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AD-PSGD with a slow worker, for which the centralized baseline waits ten times as long."""
    experiment = Experiment(algorithm="ad-psgd", workers=16, seeds=2, epochs=12, slow="3=10", gbit_per_s=0.05)
    ends = {"all-reduce": (0.98, 0.96), "bipartite-exponential": (0.97, 0.96), "ring": (0.9, 0.91)}
    timed = []
    for made in results(experiment, ends):
        is_stale = made.run.algorithm == "ad-psgd"
        epoch_s = 0.22 if is_stale else 2.2
        rows = [row | {"virtual_s": row["epoch"] * epoch_s} for row in made.epochs]
        rows = [row | ({"staleness_mean": 1.2, "staleness_max": 3} if is_stale else {}) for row in rows]
        timed.append(replace(made, epochs=rows, staleness={0: 2, 1: 5, 3: 3} if is_stale else {}))
    path = tmp_path_factory.mktemp("time") / "report.html"
    write_report(path, experiment, timed)
    return path


@pytest.fixture(scope="module")
def page_of_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Workers that see unlike data, few and many; at the size in between the runs are of before shards were kept."""
    experiment = replace(EXPERIMENT, workers=(4, 8, 400), alpha=0.1)
    runs = [
        replace(made, shards={} if made.run.workers == 8 else _dealt(made.run.workers, made.run.seed))
        for made in results(experiment, ENDS)
    ]
    path = tmp_path_factory.mktemp("shards") / "report.html"
    write_report(path, experiment, runs)
    return path


def _dealt(workers: int, seed: int) -> dict[str, list[int]]:
    return dealt_classes(torch.arange(20_000) % 10, workers=workers, seed=seed, alpha=0.1)


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        missing = "chromium and chromedriver are not installed"
        if request.config.getoption("--require-browser"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options, webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(autouse=True)
def _opened(browser: Chrome, page: Path) -> Iterator[None]:
    """Every test starts from a fresh page of a laptop's size, and ends without a word in the console."""
    _resize(browser, 1440)
    _open(browser, page)
    yield
    assert browser.get_log("browser") == []
    assert _requested(browser) == []
    browser.execute_script("localStorage.clear()")


def _open(browser: Chrome, page: Path) -> None:
    browser.get(page.as_uri())
    _wait_for_plots(browser)


def _wait_for_plots(browser: Chrome) -> None:
    _wait_until(browser, lambda: browser.execute_script("return waiting.length") == 0)


def _wait_until(browser: Chrome, holds: Callable[[], bool]) -> None:
    WebDriverWait(browser, 30, poll_frequency=0.05).until(lambda _: holds())


def _requested(browser: Chrome) -> list[str]:
    script = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    return [name for name in browser.execute_script(script) if not name.startswith(("data:", "blob:"))]


def _resize(browser: Chrome, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def _num_traces(browser: Chrome, plot: str) -> int:
    return len(browser.find_elements(By.CSS_SELECTOR, f"#{plot} svg.main-svg :is(.trace, .hm)"))


def _background(browser: Chrome) -> str:
    return browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")


def _stroke(browser: Chrome) -> str:
    """The colour of the last line of the accuracy plot; bands come before lines."""
    lines = browser.find_elements(By.CSS_SELECTOR, "#accuracy path.js-line")
    return lines[-1].value_of_css_property("stroke")


def _ring(browser: Chrome, plot: str) -> list[float | None]:
    script = "return document.getElementById(arguments[0]).data.find(t => t.name === 'ring' && !t.fill).y"
    return browser.execute_script(script, plot)


def test_every_plot_is_drawn(browser: Chrome):
    for plot in PLOTS:
        assert _num_traces(browser, plot) > 0, plot
        box = browser.find_element(By.ID, plot).rect
        assert box["width"] > 300, plot
        assert box["height"] > 100, plot


def test_no_plot_is_without_a_place_and_no_place_without_a_plot(browser: Chrome):
    places = {element.get_attribute("id") for element in browser.find_elements(By.CSS_SELECTOR, ".plot")}
    assert places == set(PLOTS) == set(browser.execute_script("return Object.keys(figures)"))


def test_theme_button_changes_page_and_plots_and_is_remembered(browser: Chrome):
    page_before, plot_before = _background(browser), _stroke(browser)
    browser.find_element(By.ID, "theme").click()
    _wait_for_plots(browser)
    page_after, plot_after = _background(browser), _stroke(browser)
    assert page_after != page_before
    assert plot_after != plot_before
    browser.refresh()
    _wait_for_plots(browser)
    assert (_background(browser), _stroke(browser)) == (page_after, plot_after)


def test_the_system_decides_the_theme_at_first(browser: Chrome):
    light = _background(browser)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    try:
        _wait_until(browser, lambda: _background(browser) != light)  # the page hears of it in its own time
        assert browser.execute_script("return root.dataset.theme") == "dark"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    _wait_until(browser, lambda: _background(browser) == light)


def test_accuracy_switch_changes_both_plots(browser: Chrome):
    before = _ring(browser, "accuracy")
    final = "return document.getElementById('final').data[0].x"
    final_before = browser.execute_script(final)
    browser.find_element(By.XPATH, "//div[@data-plots='accuracy final']/button[.='worst replica']").click()
    assert _ring(browser, "accuracy") == pytest.approx([0.9 * value for value in before], rel=1e-3)
    assert browser.execute_script(final) != final_before


def test_dispersion_and_tensors_can_be_chosen(browser: Chrome):
    choice = Select(browser.find_element(By.CSS_SELECTOR, "select[data-plots=dispersion]"))
    assert [option.text for option in choice.options] == [
        "Gini coefficient",
        "coefficient of variation",
        "quartile coefficient",
        "index of dispersion",
    ]
    choice.select_by_visible_text("quartile coefficient")
    assert browser.execute_script("return chosen.dispersion") == [2]
    heat = "return document.getElementById('tensors').data[0].customdata[0][0]"
    complete = browser.execute_script(heat)
    browser.find_element(By.XPATH, "//div[@data-plots='tensors']/button[.='ring']").click()
    ring = browser.execute_script(heat)
    assert complete == pytest.approx(1e-3, rel=2e-3)
    assert ring == pytest.approx(1e-3 / 0.0507, rel=1e-2)
    measure = Select(browser.find_element(By.CSS_SELECTOR, "select[data-plots=tensors]"))
    measure.select_by_visible_text("consensus distance")
    assert browser.execute_script("return chosen.tensors") == [1, 4]
    assert browser.execute_script(heat) == ring


def test_a_click_on_a_legend_hides_a_graph_everywhere(browser: Chrome):
    before = {plot: _num_traces(browser, plot) for plot in ("accuracy", "consensus", "scatter", "bytes")}
    browser.find_element(By.CSS_SELECTOR, ".legend button[data-graph=ring]").click()
    _wait_for_plots(browser)
    assert all(_num_traces(browser, plot) < number for plot, number in before.items())
    pressed = browser.find_elements(By.CSS_SELECTOR, ".legend button[data-graph=ring]")
    assert {button.get_attribute("aria-pressed") for button in pressed} == {"false"}


def _keys(browser: Chrome, plots: str) -> list[str]:
    keys = browser.find_elements(By.CSS_SELECTOR, f".legend[data-plots='{plots}'] button")
    return [key.text for key in keys if key.is_displayed()]


def test_a_legend_names_what_its_plots_show(browser: Chrome):
    """Centralized replicas are equal, so the all-reduce is in no plot of distances."""
    assert _keys(browser, "accuracy final") == ["all-reduce", "complete", "ring", "ada"]
    assert _keys(browser, "consensus dispersion") == ["complete", "ring", "ada"]


def test_the_level_of_the_baseline_can_be_hidden(browser: Chrome):
    before = _num_traces(browser, "scatter")
    browser.find_element(By.CSS_SELECTOR, ".legend[data-plots=scatter] button[data-graph=all-reduce]").click()
    _wait_for_plots(browser)
    assert _num_traces(browser, "scatter") == before - 1


def test_cost_on_the_way_is_a_curve(browser: Chrome):
    points = "return document.getElementById('bytes').data[0].x.length"
    assert browser.execute_script(points) == 1
    browser.find_element(By.XPATH, "//button[.='on the way']").click()
    assert browser.execute_script(points) == 12


@pytest.mark.parametrize("kind", ["page", "page_of_sizes", "page_of_time", "page_of_shards"])
def test_page_does_not_scroll_sideways(browser: Chrome, request: pytest.FixtureRequest, kind: str):
    for width in (1440, 390):
        _resize(browser, width)
        _open(browser, request.getfixturevalue(kind))
        assert browser.execute_script("return innerWidth") == width
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_a_table_that_is_too_wide_says_so_until_it_is_scrolled(browser: Chrome):
    _resize(browser, 390)
    browser.refresh()
    box = browser.find_element(By.CSS_SELECTOR, "#results .scroll")
    hint = "return getComputedStyle(arguments[0], '::before').content"
    assert "scroll" in browser.execute_script(hint, box)
    _wait_until(browser, lambda: box.get_attribute("data-more") is not None)
    browser.execute_script("arguments[0].scrollLeft = 10000", box)
    _wait_until(browser, lambda: box.get_attribute("data-more") is None)
    _resize(browser, 1440)
    _wait_until(browser, lambda: box.get_attribute("data-wide") is None)


# The table is sorted by the head of a column


def _head(browser: Chrome, name: str) -> WebElement:
    return browser.find_element(By.XPATH, f"//table[@class='results']//th/button[.='{name}']")


def _order(browser: Chrome, setting: int = 0) -> list[str]:
    """The rows of the table from top to bottom: graphs, and under them the seeds that diverged."""
    cells = browser.find_elements(By.CSS_SELECTOR, f"#results tbody[data-setting='{setting}'] tr > :first-child")
    return [cell.text.partition(":")[0] for cell in cells]


def _sorts(browser: Chrome) -> dict[str, str]:
    """What the heads that sort say to those who do not see their marks."""
    heads = browser.find_elements(By.CSS_SELECTOR, "#results th[aria-sort]")
    return {head.text: head.get_attribute("aria-sort") for head in heads}


def test_a_head_sorts_the_best_first_then_the_worst_then_not_at_all(browser: Chrome, page_of_divergence: Path):
    """Those without a number are last either way."""
    _open(browser, page_of_divergence)
    torus, ada = ["torus", "Diverged, seed 0", "Diverged, seed 1"], ["ada", "Diverged, seed 1"]
    given = ["all-reduce", *torus, "ring", "complete", *ada]
    unsorted = _sorts(browser)
    assert _order(browser) == given
    assert set(unsorted.values()) == {"none"}
    for name, *clicks in (
        (
            "averaged model",
            ("descending", ["complete", "all-reduce", *ada, "ring", *torus]),
            ("ascending", ["ring", *ada, "all-reduce", "complete", *torus]),
            ("none", given),
        ),
        (
            "total",
            ("ascending", ["ring", "all-reduce", *ada, "complete", *torus]),
            ("descending", ["complete", *ada, "all-reduce", "ring", *torus]),
            ("none", given),
        ),
    ):
        for direction, order in clicks:
            _head(browser, name).click()
            assert _order(browser) == order
            assert _sorts(browser) == unsorted | {name: direction}


def test_another_head_starts_with_its_own_best(browser: Chrome, page_of_divergence: Path):
    _open(browser, page_of_divergence)
    for name in ("total", "total", "worst replica"):
        _head(browser, name).click()
    assert _order(browser)[0] == "complete"
    assert _sorts(browser)["total"] == "none"


def test_heads_are_reached_and_pressed_by_keys(browser: Chrome):
    first, second = _head(browser, "averaged model"), _head(browser, "mean replica")
    first.send_keys(Keys.TAB)
    assert browser.switch_to.active_element == second
    for key, order in (
        (Keys.ENTER, ["complete", "all-reduce", "ada", "ring"]),
        (Keys.SPACE, ["ring", "ada", "all-reduce", "complete"]),
    ):
        browser.switch_to.active_element.send_keys(key)
        assert _order(browser) == order
        assert browser.switch_to.active_element == second


def test_nothing_moves_when_a_head_is_pressed(browser: Chrome):
    head = _head(browser, "averaged model")
    parts = browser.find_elements(By.CSS_SELECTOR, "#results :is(table, thead th, button)")
    before = [part.rect for part in parts]
    head.click()
    assert [part.rect for part in parts] == before


def test_marks_are_not_printed(browser: Chrome):
    mark = "return getComputedStyle(arguments[0], '::before').display"
    head = _head(browser, "averaged model")
    assert browser.execute_script(mark, head) == "block"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script(mark, head) == "none"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_every_setting_is_sorted_within_itself(browser: Chrome, page_of_sizes: Path):
    _open(browser, page_of_sizes)
    browser.find_element(By.XPATH, "//button[.='all settings']").click()
    _head(browser, "averaged model").click()
    assert [_order(browser, setting) for setting in range(6)] == [
        *[["complete", "all-reduce", "ring"]] * 4,
        *[["complete", "all-reduce", "ada", "ring"]] * 2,
    ]


# Several settings on one page


def _choose(browser: Chrome, name: str) -> None:
    Select(browser.find_element(By.ID, "setting")).select_by_visible_text(name)
    _wait_for_plots(browser)


def test_every_plot_follows_the_setting(browser: Chrome, page_of_sizes: Path):
    _open(browser, page_of_sizes)
    for plot in (*PLOTS, *ACROSS):
        assert _num_traces(browser, plot) > 0, plot
    heading = browser.find_element(By.CLASS_NAME, "finding")
    assert "On 16 replicas (square-root rule)" in heading.text
    end = _ring(browser, "accuracy")[-1]
    assert end == pytest.approx(0.905 - 0.03)
    _choose(browser, "4 workers · linear rule")
    assert "On 4 replicas (linear rule)" in heading.text
    assert "On 16 replicas" not in heading.text
    assert _ring(browser, "accuracy")[-1] == pytest.approx(0.905 - 0.025)


def test_what_a_setting_lacks_is_neither_shown_nor_offered(browser: Chrome, page_of_sizes: Path):
    _open(browser, page_of_sizes)
    browser.find_element(By.XPATH, "//div[@data-plots='tensors']/button[.='ada']").click()
    assert "ada" in _keys(browser, "accuracy final")
    assert browser.find_element(By.ID, "degree").is_displayed()
    _choose(browser, "4 workers · square-root rule")
    assert "ada" not in _keys(browser, "accuracy final")
    assert not browser.find_element(By.ID, "degree").is_displayed()
    ada = browser.find_element(By.XPATH, "//div[@data-plots='tensors']/button[.='ada']")
    assert not ada.is_enabled()
    assert ada.get_attribute("aria-pressed") == "false"
    assert _num_traces(browser, "tensors") > 0
    _choose(browser, "16 workers · linear rule")
    assert ada.get_attribute("aria-pressed") == "true", "the choice is remembered"


def test_the_table_shows_the_chosen_setting_or_all(browser: Chrome, page_of_sizes: Path):
    _open(browser, page_of_sizes)

    def shown() -> int:
        rows = browser.find_elements(By.CSS_SELECTOR, "#results tbody tr")
        return sum(row.is_displayed() for row in rows)

    assert shown() == 4
    _choose(browser, "8 workers · linear rule")
    assert shown() == 3
    browser.find_element(By.XPATH, "//button[.='all settings']").click()
    assert shown() == 20
    assert len(browser.find_elements(By.CSS_SELECTOR, "#results tbody.chosen tr")) == 3


def test_curves_go_by_epoch_or_by_virtual_time(browser: Chrome, page_of_time: Path):
    _open(browser, page_of_time)
    ends = "return document.getElementById(arguments[0]).data.filter(t => !t.fill).map(t => t.x.at(-1))"
    title = "return document.getElementById(arguments[0]).layout.xaxis.title.text"
    assert set(browser.execute_script(ends, "accuracy")) <= {1, 12}  # the ends of lines, and of marks
    for plots, switched in (("accuracy", ["accuracy"]), ("consensus dispersion", ["consensus", "dispersion"])):
        browser.find_element(By.XPATH, f"//div[@data-plots='{plots}']/button[.='by virtual time']").click()
        for plot in switched:
            assert browser.execute_script(title, plot) == "virtual time, s"
    assert browser.execute_script(ends, "accuracy") == pytest.approx([26.4, 2.64, 2.64])
    browser.find_element(By.XPATH, "//div[@data-plots='accuracy']/button[.='by epoch']").click()
    assert browser.execute_script(title, "accuracy") == "epoch"


def test_a_timeline_shows_who_waits(browser: Chrome, page_of_time: Path):
    _open(browser, page_of_time)
    drawn = browser.find_elements(By.CSS_SELECTOR, "#timeline svg:not(.main-svg)")
    timelines = [svg for svg in drawn if svg.find_elements(By.TAG_NAME, "rect")]
    assert len(timelines) == 3
    waiting = [len(svg.find_elements(By.CSS_SELECTOR, "rect[fill*=waiting]")) for svg in timelines]
    joined = [len(svg.find_elements(By.CSS_SELECTOR, "line[stroke*=exchanging]")) for svg in timelines]
    assert waiting[0] >= 7, "all that are shown but the slow one wait for it"
    assert joined[0] == 0
    assert min(joined[1:]) > 5, "pairs are joined"
    assert "3 (10×)" in timelines[0].text
    assert all(svg.size["width"] > 900 for svg in timelines)
    assert _num_traces(browser, "staleness") == 2


def _samples(browser: Chrome) -> list[list[int]]:
    return browser.execute_script("return document.getElementById('shards').data[0].z")


def test_who_sees_which_data_is_drawn_in_both_themes_and_for_every_seed(browser: Chrome, page_of_shards: Path):
    _open(browser, page_of_shards)
    assert _num_traces(browser, "shards") == 1
    assert np.shape(_samples(browser)) == (10, 400)
    assert np.sum(_samples(browser)) == 20_000
    colours = "return document.getElementById('shards').layout.coloraxis.colorscale.map(([_, colour]) => colour)"
    light, first_seed = browser.execute_script(colours), _samples(browser)
    browser.find_element(By.XPATH, "//div[@data-plots='shards']/button[.='seed 1']").click()
    assert _samples(browser) != first_seed
    browser.find_element(By.ID, "theme").click()
    _wait_for_plots(browser)
    dark = browser.execute_script(colours)
    assert len(set(light) | set(dark)) == 10, "every shade is a colour, and none is in both"


def test_who_sees_which_data_follows_the_setting_and_goes_where_nobody_knows(browser: Chrome, page_of_shards: Path):
    _open(browser, page_of_shards)
    section = browser.find_element(By.ID, "shards").find_element(By.XPATH, "ancestor::section")
    assert "With α = 0.1, half of the workers have nine tenths of their samples from" in section.text
    many = section.text
    _choose(browser, "4 workers")
    few = np.transpose(_samples(browser))
    expected = np.zeros((4, 10), int)
    dealt = _dealt(4, 0)
    expected[dealt["worker"], dealt["class"]] = dealt["samples"]
    assert few.tolist() == expected.tolist()
    assert section.text != many
    _choose(browser, "8 workers")
    assert not section.is_displayed()
    assert "Who sees which data" not in browser.find_element(By.TAG_NAME, "main").text


def test_a_large_page_is_drawn_quickly(browser: Chrome, tmp_path: Path):
    """1008 workers, 65 tensors, 150 probes: within a few seconds also where two cores are busy."""
    experiment = Experiment(
        graphs=("complete", "exponential", "torus", "ring", "ada"), workers=1008, seeds=1, epochs=150
    )
    names = [f"layers.{i}.weight" for i in range(65)]
    write_report(tmp_path / "report.html", experiment, [result(run, 0.9, tensors=names) for run in experiment.runs()])
    _open(browser, tmp_path / "report.html")
    assert (
        browser.execute_script(
            "const start = performance.now(); drawAll(); drawSome(Infinity); return performance.now() - start"
        )
        < 3000
    )
    assert browser.execute_script("return document.getElementById('tensors').data[0].z.length") == 65
