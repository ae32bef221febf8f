"""The report in a real browser: it draws, it answers to clicks, it fits, it asks nobody for anything."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up_runs import results
from selenium import webdriver
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from gossamer.bench import Experiment
from gossamer.bench.report import write_report

PLOTS = ("accuracy", "final", "consensus", "dispersion", "scatter", "tensors", "degree", "bytes")
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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    experiment = Experiment(graphs=("complete", "ring", "ada"), workers=16, seeds=2, epochs=12)
    ends = {"all-reduce": (0.98, 0.96), "complete": (0.97, 0.98), "ring": (0.90, 0.91), "ada": (0.96, 0.97)}
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, experiment, results(experiment, ends))
    return path


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
    browser.get(page.as_uri())
    yield
    assert browser.get_log("browser") == []
    browser.execute_script("localStorage.clear()")


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
    page_after, plot_after = _background(browser), _stroke(browser)
    assert page_after != page_before
    assert plot_after != plot_before
    browser.refresh()
    assert (_background(browser), _stroke(browser)) == (page_after, plot_after)


def test_the_system_decides_the_theme_at_first(browser: Chrome):
    light = _background(browser)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert _background(browser) != light
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_accuracy_switch_changes_both_plots(browser: Chrome):
    before = _ring(browser, "accuracy")
    final = "return document.getElementById('final').data[0].x"
    final_before = browser.execute_script(final)
    browser.find_element(By.XPATH, "//button[.='worst replica']").click()
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
    assert browser.execute_script("return viewOf.dispersion") == 2
    heat = "return document.getElementById('tensors').data[0].customdata[0][0]"
    before = browser.execute_script(heat)
    browser.find_element(By.XPATH, "//div[@data-plots='tensors']/button[.='ring']").click()
    assert browser.execute_script(heat) > before


def test_a_click_on_a_legend_hides_a_graph_everywhere(browser: Chrome):
    before = {plot: _num_traces(browser, plot) for plot in ("accuracy", "consensus", "scatter", "bytes")}
    browser.find_element(By.CSS_SELECTOR, ".legend button[data-graph=ring]").click()
    assert all(_num_traces(browser, plot) < number for plot, number in before.items())
    pressed = browser.find_elements(By.CSS_SELECTOR, ".legend button[data-graph=ring]")
    assert {button.get_attribute("aria-pressed") for button in pressed} == {"false"}


@pytest.mark.parametrize("width", [1440, 390])
def test_page_does_not_scroll_sideways(browser: Chrome, width: int):
    _resize(browser, width)
    browser.refresh()
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_nothing_is_requested(browser: Chrome):
    script = "return performance.getEntriesByType('resource').map(entry => entry.name)"
    assert [name for name in browser.execute_script(script) if not name.startswith(("data:", "blob:"))] == []
