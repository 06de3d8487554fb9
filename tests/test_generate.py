"""task=generate: no piece takes the place of one that was drawn in another way."""

import yaml
from training_support import configured, go

from bearings.tasks.generate import Generate
from bearings.tasks.house import House


def test_what_is_drawn_in_another_way_has_another_name(tmp_path):
    run, _ = go(configured(tmp_path, "encoding=rope", "trainer.steps=8", "task.samples=0"))
    house = House.of(yaml.safe_load(run.config_file.read_text()) | {"run": str(run.path)})
    for folder, text in (("p1", "abc"), ("p2", "bcd")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(text)
    ways = [
        *({}, {"samples": 3}, {"tokens": 16}, {"temperature": 0.9}, {"temperature": 0.90000001}),
        *({"top_k": 1}, {"top_p": 1.0}, {"sampling_seed": 1}),
        *({"prompt": str(tmp_path / folder / "a.txt")} for folder in ("p1", "p2")),
    ]
    there = {}
    for way in ways:
        Generate(**way)(house)
        found = {path.name: path.read_text() for path in (run.path / "samples").iterdir()}
        assert len(found) == len(there) + way.get("samples", 2)
        assert there.items() <= found.items()
        there = found
    assert {"seed0-0.txt", "seed0-1.txt", "seed0-samples3-2.txt", "seed0-top_k1-0.txt"} <= there.keys()
    Generate(samples=2, tokens=512, temperature=1)(house)
    assert there == {path.name: path.read_text() for path in (run.path / "samples").iterdir()}
