"""The steps at which training checks, validates, writes checkpoints and stops."""

import signal
from types import SimpleNamespace

import pytest

from bearings.core.errors import InterruptedRunError
from bearings.lightning_modules import callbacks

CALENDAR = {
    3: "check save",
    4: "check save prepare score save",
    6: "check save",
    7: "check",
    8: "check save prepare score save",
    9: "check save",
    10: "check save prepare score save",
}


@pytest.mark.parametrize(
    ("ranks", "asked", "end"),
    [
        (1, None, {}),
        (1, "2", {2: "check save stop"}),
        (1, "4", {4: "check save stop"}),
        (1, "4 score", {4: "check save prepare score save stop"}),
        (1, "7 check", {8: "check save stop"}),  # not at 7, which is not saved
        (1, "10", {10: "check save"}),  # what started it raises KeyboardInterrupt
        (2, "2", {7: "check save stop"}),  # they agree when they log
        (2, "4 score", {7: "check save stop"}),
        (2, "10", {10: "check save"}),
    ],
)
def test_validations_checkpoints_and_stops_are_at_their_steps(tmp_path, monkeypatch, ranks, asked, end):
    """Of ten: a validation every four, a checkpoint every three, and a line in the log every seven."""
    done, place = {}, SimpleNamespace(barrier=lambda: None, root_device=None)
    trainer = SimpleNamespace(max_steps=10, log_every_n_steps=7, world_size=ranks, loggers=[], is_global_zero=True)

    def note(what):
        done[trainer.global_step] = f"{done.get(trainer.global_step, '')} {what}".strip()
        if f"{trainer.global_step} {what}" == asked:
            validation._on_signal(signal.SIGTERM, None)

    def score(module, on_batch):
        note("score")
        return SimpleNamespace(nats_per_token=1.0, bits_per_unit={}, accuracy=None)

    trainer.strategy, trainer.save_checkpoint = place, lambda path: path.touch() or note("save")
    trouble = SimpleNamespace(tolist=lambda: note("check") or (-1, 0.0))
    module = SimpleNamespace(drop_step=10, final_from=0, trouble=trouble)
    module.prepare = lambda step: note("prepare" if step == trainer.global_step else f"prepare {step}")
    monkeypatch.setattr(callbacks, "any_of", lambda mine, device: mine)
    validation = callbacks.Validation(score, tmp_path, every=4, checkpoint_every=3, stamp={})
    try:
        for trainer.global_step in range(1, 11):
            if str(trainer.global_step) == asked:
                validation._on_signal(signal.SIGTERM, None)
            validation.on_train_batch_end(trainer, module, None, None, 0)
    except InterruptedRunError:
        note("stop")
    assert done == {step: what for step, what in CALENDAR.items() if step < min(end, default=11)} | end
