"""Drawings are well-formed, show every node and edge, stay small, and say what they leave out."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gossamer.topologies import (
    Mixing,
    build,
    complete,
    draw_schedule_svg,
    draw_svg,
    exponential,
    from_groups,
    names,
    ring,
    star,
    torus,
)

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return root


@pytest.mark.parametrize("n", [1, 2, 3, 16])
@pytest.mark.parametrize("name", ["ring", "torus", "exponential", "complete", "star", "ada", "random-matching"])
def test_every_node_and_edge_is_drawn(name: str, n: int) -> None:
    mixing = build(name, n)(0)
    root = parsed(draw_svg(mixing))
    assert len(root.findall(f".//{SVG}circle")) == n
    lines = [path for path in root.iter(f"{SVG}path") if path.get("stroke") != "none"]
    assert len(lines) == mixing.num_edges


@pytest.mark.parametrize("name", names())
def test_every_schedule_is_drawn(name: str) -> None:
    schedule = build(name, 16, epochs=20)
    root = parsed(draw_schedule_svg(schedule, title="A title"))
    panels = root.findall(f"{SVG}g")
    assert 1 <= len(panels) <= 6
    captions = [text.text for text in root.iter(f"{SVG}text")]
    assert captions[0] == "A title"
    assert len(captions) == 1 + len(panels)


def test_stages_of_ada_run_from_complete_to_k_min() -> None:
    schedule = build("ada", 24, epochs=60, steps_per_epoch=100)
    captions = [text.text for text in parsed(draw_schedule_svg(schedule)).iter(f"{SVG}text")]
    assert captions[0] == "step 0 · complete"
    assert captions[-1] is not None
    assert captions[-1].endswith("degree 2")
    by_epoch = draw_schedule_svg(
        schedule,
        steps=600,
        max_stages=2,
        caption=lambda step, mixing: f"epoch {step // 100}: k={mixing.degree}",
    )
    assert [text.text for text in parsed(by_epoch).iter(f"{SVG}text")] == ["epoch 0: k=23", "epoch 5: k=20"]


@pytest.mark.parametrize("mixing", [complete(1008), exponential(1008), torus(1008)], ids=lambda m: m.name)
def test_large_graphs_stay_small_and_say_what_is_left_out(mixing: Mixing) -> None:
    svg = draw_svg(mixing)
    assert len(svg) < 1_000_000
    description = parsed(svg).findtext(f"{SVG}desc") or ""
    assert ("3000 of" in description) == (mixing.num_edges > 3000)


def test_text_is_escaped_and_colours_can_be_themed() -> None:
    svg = draw_svg(ring(4), title="<b> & 'co'")
    assert parsed(svg).findtext(f"{SVG}text") == "<b> & 'co'"
    assert "var(--edge, #" in svg
    assert "var(--node, #" in svg
    assert "currentColor" in svg


def test_the_hub_of_a_star_is_in_the_centre_and_idlers_are_grey() -> None:
    hub = parsed(draw_svg(star(9), size=100)).find(f".//{SVG}circle")
    assert hub is not None
    assert (hub.get("cx"), hub.get("cy")) == ("50", "50")
    circles = parsed(draw_svg(from_groups(4, [(0, 1)]))).findall(f".//{SVG}circle")
    assert ["--idle" in (circle.get("fill") or "") for circle in circles] == [False, False, True, True]


def test_drawings_are_repeatable() -> None:
    assert draw_svg(complete(100)) == draw_svg(complete(100))


@pytest.mark.parametrize("arguments", [{"size": 3}, {"size": 1.5}])
def test_refusals(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="size of a drawing"):
        draw_svg(ring(4), **arguments)


def test_schedule_refusals() -> None:
    with pytest.raises(ValueError, match="steps to draw"):
        draw_schedule_svg(build("ring", 4), steps=0)
    with pytest.raises(ValueError, match="max_stages"):
        draw_schedule_svg(build("ring", 4), max_stages=0)
