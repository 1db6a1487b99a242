"""The page in a real headless browser: it draws, searches, zooms and explains under its own security policy."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyhangtrace.model.kinds import FoundBy, FrameKind
from pyhangtrace.model.stacks import Frame
from pyhangtrace.render.html.page import render_html
from pyhangtrace.render.registry import recording_format_for
from pyhangtrace.render.result import RecordResult
from tests.unit.render import sample
from tests.unit.render.test_recording import result

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def driver(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium (make setup-test)")
    path = shutil.which("chromedriver")
    if path is None:
        pytest.skip("needs chromedriver (make setup-test)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
        "--window-size=1200,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=path))
    yield browser
    browser.quit()


@pytest.fixture
def page(driver: Any, tmp_path: Path) -> Any:
    path = tmp_path / "report.html"
    path.write_text(render_html(sample.report()), encoding="utf-8")
    driver.get(path.as_uri())
    return driver


def boxes(page: Any) -> list[dict[str, str]]:
    return page.execute_script(
        "return [...document.querySelectorAll('#flame .box')].map(e => "
        "({ranks: e.dataset.ranks, label: e.dataset.label, left: e.style.left, width: e.style.width,"
        "  classes: e.className}))"
    )


def test_draws_without_errors(page: Any) -> None:
    labels = {box["label"] for box in boxes(page)}
    assert {"all ranks", "<module> (worker.py:12)", "build (kernels.py:41)"} <= labels
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_odd_rank_stands_left_and_is_as_wide_as_the_seven_others(page: Any) -> None:
    by_label = {box["label"]: box for box in boxes(page)}
    odd = by_label["build (kernels.py:41)"]
    others = by_label["all_reduce (distributed_c10d.py:3252)"]
    assert (odd["ranks"], others["ranks"]) == ("3", "0-2,4-7")
    assert odd["width"] == others["width"]
    assert float(odd["left"].rstrip("%")) < float(others["left"].rstrip("%"))


def test_search_marks_and_counts(page: Any) -> None:
    field = page.find_element("id", "search")
    field.send_keys("ALL_REDUCE")
    assert [b["ranks"] for b in boxes(page) if "match" in b["classes"]] == ["0-2,4-7"]
    assert page.find_element("id", "found").text == "1 frames shown, 7 threads in all"


def test_zoom_and_back(page: Any) -> None:
    before = boxes(page)
    target = next(
        e
        for e in page.find_elements("css selector", "#flame .box")
        if "build" in e.get_attribute("data-label")
    )
    target.click()
    zoomed = boxes(page)
    assert "all_reduce (distributed_c10d.py:3252)" not in {box["label"] for box in zoomed}
    assert next(b for b in zoomed if "build" in b["label"])["left"] == "0%"
    page.find_element("id", "back").click()
    assert boxes(page) == before


def test_details_name_ranks_and_who_is_not_there(page: Any) -> None:
    target = next(
        e
        for e in page.find_elements("css selector", "#flame .box")
        if "all_reduce" in e.get_attribute("data-label")
    )
    target.click()
    details = page.find_element("id", "details").text
    assert "ranks 0-2,4-7" in details
    assert "not here 3" in details
    assert "/opt/torch/distributed/distributed_c10d.py:3252" in details
    assert "rank 0, pid 4240, MainThread (4240): waits in all_reduce #418 of tp" in details


def test_service_threads_are_shown_when_asked_for(page: Any) -> None:
    assert not any("epoll_wait" in box["label"] for box in boxes(page))
    page.find_element("id", "service").click()
    assert any("epoll_wait" in box["label"] for box in boxes(page))


@pytest.fixture
def recorded(driver: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    path = tmp_path / "record.html"
    path.write_bytes(recording_format_for(path.name).write(result(difference=request.param)))
    driver.get(path.as_uri())
    return driver


@pytest.mark.parametrize("recorded", [False], indirect=True)
def test_a_recording_is_as_wide_as_what_was_measured(recorded: Any) -> None:
    assert [entry for entry in recorded.get_log("browser") if entry["level"] == "SEVERE"] == []
    by_label = {box["label"]: box for box in boxes(recorded)}
    whole, waits = by_label["all ranks"], by_label["take (train.py:12)"]
    # 0.8 s at one word, of which two of three snapshots show this stack; 3.4 s in all.
    assert float(waits["width"].split("calc(")[1].split("%")[0]) == pytest.approx(
        100 * (0.8 * 2 / 3) / 3.4, abs=0.5
    )
    assert whole["ranks"] == "0"
    recorded.execute_script(
        "[...document.querySelectorAll('#flame .box')].find(e => e.dataset.label === 'take (train.py:12)').click()"
    )
    details = recorded.execute_script("return document.getElementById('details').textContent")
    assert "waited 533.3 ms" in details
    assert "rank 0, pid 100, MainThread (100): 533.3 ms" in details


@pytest.mark.parametrize("recorded", [True], indirect=True)
def test_a_comparison_is_red_where_it_has_grown(recorded: Any) -> None:
    assert [entry for entry in recorded.get_log("browser") if entry["level"] == "SEVERE"] == []
    colours = recorded.execute_script(
        "return [...document.querySelectorAll('#flame .box')].map(e => getComputedStyle(e).backgroundColor)"
    )
    # Everything waited twice as long as before.
    assert all(colour.startswith("rgb(245, ") for colour in colours)


def thin(stacks: int) -> RecordResult:
    """One thread that waits for ten seconds in one stack, and for a millisecond in each of many others."""
    heavy = result(difference=False)
    one = heavy.profile.stacks[0]
    names = ["long", *(f"short_{number}" for number in range(stacks))]
    weighed = tuple(
        replace(
            one,
            weight=10.0 if name == "long" else 0.001,
            frames=(
                Frame(kind=FrameKind.PYTHON, function=name, file="t.py", line=1, found_by=FoundBy.PYTHON),
            ),
        )
        for name in names
    )
    return replace(heavy, profile=replace(heavy.profile, stacks=weighed))


def test_many_thin_frames_take_no_room_and_do_not_run_into_each_other(driver: Any, tmp_path: Path) -> None:
    path = tmp_path / "thin.html"
    path.write_bytes(recording_format_for(path.name).write(thin(300)))
    driver.get(path.as_uri())
    drawn = driver.execute_script(
        "return [...document.querySelectorAll('#flame .box')].map(e => [e.dataset.label, e.textContent, "
        "e.getAttribute('aria-label'), e.offsetTop, e.offsetLeft, e.getBoundingClientRect().width])"
    )
    boxes = [box for box in drawn if box[0] != "all ranks"]
    whole = next(box for box in drawn if box[0] == "all ranks")[5]
    assert len(boxes) == 301
    long = next(box for box in boxes if box[0].startswith("long"))
    assert long[1] == long[2] == f"10.00 s {long[0]}"
    assert long[5] >= 0.95 * whole
    assert all(box[1] == "" and box[2].startswith("1.0 ms short_") for box in boxes if box is not long)
    placed = sorted((box[4], box[5]) for box in boxes)
    assert all(left + width <= right + 1 for (left, width), (right, _) in itertools.pairwise(placed))
    # One thread has all of them.
    driver.execute_script("document.querySelector('#flame .box').click()")
    details = driver.execute_script("return document.getElementById('details').textContent")
    assert "threads 1" in details
    assert ": 10.30 s" in details
