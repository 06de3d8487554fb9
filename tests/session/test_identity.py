"""The identity of a run: the settings that determine its results, and no others."""

import pytest
from encodings_support import ENCODINGS
from omegaconf import OmegaConf
from training_support import configured

from bearings.core.options import options_of
from bearings.session.identity import LATER, LATER_IN_CLASS, decisive, identity, incidental
from bearings.session.overrides import choices_of
from bearings.session.settings import CONFIGS, OWN, declared

INVALID = ("nope", "scaling_length", None)


@pytest.mark.parametrize(
    "override",
    [
        *("domain.path=other", "domain.urls=other", "domain.bed=other"),  # their content counts
        *("domain.tokenizer_path=other", "domain.tokenizer_urls=other", "model.pretrained=other"),
        *("data.workers=3", "evaluation.tokens_per_batch=9", "encoding.implementation=auto"),
        *("trainer.accelerator=cpu", "trainer.devices=2", "trainer.nodes=2", "trainer.strategy=fsdp"),
        *("trainer.context_parallel=2", "trainer.micro_batch=1", "trainer.activation_checkpointing=true"),
        *("trainer.compile=true", "trainer.cuda_graphs=true", "trainer.deterministic=false"),
        *("trainer.checkpoint_every=3", "trainer.log_every=2", "trainer.wandb=name"),
    ],
)
def test_settings_that_change_no_result_do_not_change_the_identity(tmp_path, override):
    key, _, value = override.partition("=")
    group, _, name = key.partition(".")
    plain = configured(tmp_path)
    assert identity({**plain, group: {**plain[group], name: value}}) == identity(plain)


def test_later_options_at_their_defaults_do_not_change_the_identity(tmp_path):
    plain = configured(tmp_path)
    for group, later in LATER.items():
        if group in OWN:
            declarations = [OWN[group]]
        else:
            files = [OmegaConf.load(CONFIGS / group / f"{name}.yaml") for name in choices_of(group)]
            declarations = [declared(file["_target_"], group) for file in files]
        defaults = {(key, option.default) for each in declarations for key, option in options_of(each).items()}
        for key, value in later:
            assert (key, value) in defaults or key == "source"  # whose default differs between domains
            assert identity({**plain, group: {**plain[group], key: value}}) == identity(
                {**plain, group: {name: old for name, old in plain[group].items() if name != key}}
            )
    for target, later in LATER_IN_CLASS.items():
        for key, value in later:
            assert decisive("encoding", {"_target_": target, key: value}) == {"_target_": target}


def test_pretrained_weights_are_part_of_the_identity_and_their_place_is_not(tmp_path):
    one, moved, other = (
        identity(configured(tmp_path) | {"pretrained": {"sha256": digest * 64, "path": path}})
        for digest, path in (("a", "here"), ("a", "there"), ("b", "here"))
    )
    assert one == moved
    assert one != other
    assert one != identity(configured(tmp_path))


def test_a_named_implementation_distinguishes_runs():
    assert not incidental("encoding.implementation")
    assert incidental("trainer.devices")
    assert not incidental("trainer.steps")


def test_a_setting_that_is_the_default_of_another_encoding_is_part_of_the_identity():
    for name in ENCODINGS:
        target = f"bearings.encodings.{name}.{ENCODINGS[name].__name__}"
        options = options_of(declared(target, "encoding"))
        for key, value in (*LATER["encoding"], *LATER_IN_CLASS["bearings.encodings.nope.NoPE"]):
            if key not in options or options[key].default == value or (name, key, value) == INVALID:
                continue
            given = {"_target_": target, key: value}
            assert decisive("encoding", given) == given
