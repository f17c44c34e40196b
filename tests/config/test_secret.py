"""A secret is used, and never shown."""

from __future__ import annotations

import pickle

import pytest

from recovery import config
from recovery.config.reader import Reader
from tests.config.environments import WORKER

CANARY = "canary-0123456789abcdef"


def test_a_job_token_is_in_the_settings_and_in_no_text_of_them() -> None:
    settings = config.load({**WORKER, "MS_JOB_TOKEN": CANARY})
    assert settings.job_token is not None
    assert settings.job_token.reveal() == CANARY
    assert CANARY not in repr(settings)
    assert CANARY not in repr(settings.sources)
    with pytest.raises(TypeError):
        pickle.dumps(settings.job_token)


def test_that_it_is_off_or_unset_is_shown() -> None:
    shown = {
        given: next(
            one.value for one in Reader({**WORKER, **given_in}).sources() if one.name == "MS_JOB_TOKEN"
        )
        for given, given_in in {
            "off": {"MS_JOB_TOKEN": "off"},
            "": {},
            "set": {"MS_JOB_TOKEN": CANARY},
        }.items()
    }
    assert shown == {"off": "off", "": "", "set": "(not shown)"}
    assert config.load(WORKER).job_token is None
