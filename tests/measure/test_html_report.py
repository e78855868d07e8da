"""Pages: self-contained, a table under every plot, whatever is in a name; figures of other protocols stay apart."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from octavo.core.errors import InvalidField
from octavo.measure.compare.comparison import Comparison
from octavo.measure.page.axis import Axis, Scale
from octavo.measure.page.charts import Point, scatter
from octavo.measure.page.html_report import check_page_file, render_page, write_page
from octavo.measure.page.module_errors import block_of, errors_by_role, role_of
from tests.measure.pages import PROTOCOL, PageReader, a_module, a_speed, an_entry

HOSTILE = '<script>alert("1")</script>&'

RECORD = {
    "source": HOSTILE,
    "recipe": {"method": "gptq", "bits": 4, "group": 64},
    "bytes": {"source": 4000, "output": 1000},
    "caveats": ["The source was quantized before."],
    "notes": [],
    "calibration": {"source": "a.txt", "num_tokens": 4096},
    "verification": "equals ours",
    "fallbacks": ["model.layers.1.mlp.up_proj"],
    "seconds": {"quantizing": 12.0},
    "modules": [
        a_module("model.embed_tokens", rtn_error=0.1),
        a_module("model.layers.0.mlp.up_proj"),
        a_module("model.layers.1.mlp.up_proj", fallback="no tokens", num_dead_inputs=7, transforms=["awq"]),
    ],
}


def test_a_report_tells_everything_that_octavo_json_knows() -> None:
    entry = an_entry("m4", 1000, 10.5, 0.07, record=RECORD, speed=a_speed(93.2))
    page = PageReader(render_page(Comparison([entry])))
    for told in (
        "10.500", "0.0700", "90.0%", "93.2/s", "The source was quantized before.", "held-out.txt", "4,096 tokens",
        "gptq int4 symmetric group 64", "source.gguf", "no tokens", "awq", "0.01", "first 2 of 9", "equals ours",
        "model.layers.1.mlp.up_proj", "Size by part", "norms",
    ):  # fmt: skip
        assert told in page.text, told


@pytest.mark.parametrize("count", [1, 3])
def test_a_page_needs_nothing_but_itself_and_is_accessible(count: int) -> None:
    entries = [an_entry(f"m{i}", 1000 - i, 10 + i, 0.1 + i, record=RECORD, speed=a_speed(90 + i)) for i in range(count)]
    page = PageReader(render_page(Comparison(entries)))
    assert [attribute for attribute in page.attributes if attribute[1] in ("src", "href", "srcset", "style")] == []
    assert len(page.figures) >= 3
    assert all(figure.count("svg") == figure.count("table") == 1 for figure in page.figures)
    labels = [name for tag, name, value in page.attributes if tag == "svg" and name in ("role", "aria-label") and value]
    assert len(labels) == 2 * sum(figure.count("svg") for figure in page.figures)


def test_names_are_text_wherever_they_stand() -> None:
    entries = [an_entry(f"{HOSTILE}{i}", 1000 + i, 12 - i, record=RECORD, problems=[HOSTILE]) for i in range(2)]
    rendered = render_page(Comparison(entries, against=HOSTILE, notes=[HOSTILE]))
    page = PageReader(rendered)
    assert "<script" not in rendered
    assert page.text.count(HOSTILE) >= 6


def test_other_protocols_and_bases_are_on_no_front_and_in_no_plot() -> None:
    alike = [an_entry("a", 1000, 12.0, 0.2), an_entry("b", 2000, 11.0, 0.1)]
    other = an_entry("c", 10, 1.0, 0.001)
    other.quality["protocol"] = {**PROTOCOL, "window_tokens": 2048}
    baseless = an_entry("d", 10, 1.0)
    comparison = Comparison([*alike, other, baseless, an_entry("e", 10, 1.0, quality=None)])
    assert comparison.by_size() == alike
    assert [line.split(" ")[0] for line in comparison.not_comparable()] == ["c", "d", "e"]
    rendered = render_page(comparison)
    assert rendered.count('class="dot best"') == 2
    assert "c is in no plot of quality: its quality was measured by another protocol" in rendered


def test_beaten_checkpoints_are_not_marked() -> None:
    small, beaten, good = an_entry("a", 100, 20.0), an_entry("b", 150, 21.0), an_entry("c", 200, 10.0)
    for entry, speed in ((small, 50.0), (beaten, 90.0), (good, 60.0)):
        entry.speed = a_speed(speed)
    comparison = Comparison([good, beaten, small])
    assert [entry.name for entry in comparison.by_size()] == ["a", "c"]
    assert [entry.name for entry in comparison.by_speed()] == ["b", "c"]
    marked = {each["name"]: (each["pareto_size"], each["pareto_speed"]) for each in comparison.to_dict()["checkpoints"]}
    assert marked == {"a": (True, False), "b": (False, True), "c": (True, True)}


def test_roles_and_blocks() -> None:
    assert role_of("model.layers.3.self_attn.q_proj") == "self_attn.q_proj"
    assert role_of("model.layers.0.mlp.experts.11.w1") == "mlp.experts.*.w1"
    assert (role_of("lm_head"), block_of("lm_head"), block_of("model.layers.12.mlp.up_proj")) == (None, None, 12)
    experts = [a_module(f"model.layers.1.mlp.experts.{i}.w1", error=float(i), rtn_error=2.0) for i in range(3)]
    assert errors_by_role(experts) == {
        "mlp.experts.*.w1": {"rounded to nearest": [None, 2.0], "as written": [None, 1.0]}
    }


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("values", [[3.0], [0.001, 1000.0], [5.0, 5.1], [1e-9, 2e-9], [10.0, 100.0, 40.0]])
def test_axes_hold_their_values_and_have_round_ticks(values: list[float], is_log: bool) -> None:
    scale = Scale(Axis("x", is_log), values, 0, 100)
    assert all(0 < scale.pixel(value) < 100 for value in values)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 12
    assert ticks == sorted(ticks)
    assert all(-1e-6 <= scale.pixel(tick) <= 100 + 1e-6 for tick in ticks)


def test_a_scatter_is_wellformed_and_joins_the_front() -> None:
    points = [Point(float(i), 2.0**-i, f"<{i}>", "tip & more", i != 1) for i in range(3)]
    drawn = ElementTree.fromstring(scatter("a < b", points, Axis("x"), Axis("y", is_log=True)))
    circles = list(drawn.iter("circle"))
    assert len(circles) == 3
    [front] = [each for each in drawn.iter("polyline") if each.get("class") == "front"]
    assert len(front.get("points", "").split()) == 2


def test_a_page_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page.html"
    write_page(file, Comparison([an_entry("first", 10, 1.0)]))
    broken = an_entry("second", 10, 1.0)
    del broken.quality["perplexity_interval"]
    with pytest.raises(KeyError):
        write_page(file, Comparison([broken]))
    assert "first" in file.read_text()
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_impossible_files_are_refused_before(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "report.txt", tmp_path / "missing" / "report.html"):
        with pytest.raises(InvalidField, match="html"):
            check_page_file(file)
