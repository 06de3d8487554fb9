"""Line styles of models in plots."""

from bearings.reporting.drawing import STYLED
from bearings.reporting.plots import styles_of


def test_styles_are_distinct_within_a_comparison():
    groups = [{*"abcdef"}, {*"ghijkl"}, {"a", "l", "m"}, {"fox, window=8", "pope, window=8", "pope", "rope", "a"}]
    for labels, styles in zip(groups, styles_of(groups), strict=True):
        assert styles.keys() == labels
        assert len({style["color"] for style in styles.values()}) == len(labels)


def test_styles_are_distinct_even_if_some_cannot_be_the_same_in_all_comparisons():
    six = {"nope", "path", "path_fox", "pope", "rope", "fox"}
    groups = [six | {"alibi"}, six | {"dape"}, six | {"tpe"}, {"alibi", "dape", "tpe", "path", "pope", "rope"}]
    each = styles_of(groups)
    for labels, styles in zip(groups, each, strict=True):
        assert len({style["color"] for style in styles.values()}) == len(labels)
    assert all(styles["rope"] == each[0]["rope"] for styles in each)


def test_an_encoding_has_the_same_style_whatever_it_is_compared_with():
    every, _ = styles_of([{*STYLED}, {"alibi", "rope"}])
    for labels in ({"path", "pope", "rope"}, {"alibi", "rope"}, {"fox, window=8", "pope", "pope, window=8"}):
        (styles,) = styles_of([labels])
        assert all(styles[label] == every[label.partition(",")[0]] for label in labels - {"alibi", "pope, window=8"})
