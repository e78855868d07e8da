"""What the card takes from octavo.json."""

import json

import pytest

from octavo.core.errors import CheckpointError
from octavo.serve.model_info import read_quality


def write(directory, text):
    (directory / "octavo.json").write_text(text)
    return directory


def test_the_measurement_and_all_caveats(tmp_path):
    assert read_quality(tmp_path) is None
    report = {"quality": {"perplexity": 3.0, "caveats": ["a"]}, "caveats": ["b", "a"], "modules": [1, 2]}
    assert read_quality(write(tmp_path, json.dumps(report))) == {"perplexity": 3.0, "caveats": ["b", "a"]}
    assert read_quality(write(tmp_path, '{"quality": null}')) is None


@pytest.mark.parametrize("text", ["", "[]", '{"quality": 3}', '{"quality": {"perplexity": NaN}}'])
def test_a_damaged_report_is_not_shown(tmp_path, text):
    with pytest.raises(CheckpointError, match=r"octavo\.json"):
        read_quality(write(tmp_path, text))
