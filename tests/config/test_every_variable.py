"""Every row of the table: missing, empty, not of its kind, out of range. The error names field, value and rule."""

from __future__ import annotations

import pytest

from recovery import config
from recovery.config.setting import Fate, Setting, SettingKind
from recovery.config.table import SETTINGS
from recovery.errors import SettingError
from tests.config.environments import NOT_NUMBERS, NUMBERS, WORKER, out_of_range, refusal, with_value

HONOURED = [row for row in SETTINGS if row.fate is Fate.HONOURED]
UNTOUCHED = [row for row in SETTINGS if row.fate is not Fate.HONOURED]
WRONG_KIND = {
    SettingKind.NODE_ID: ("../x", "a/b", "-a", "a b", "worker_0\n", "é", "a" * 65, "."),
    SettingKind.HOST: (
        "a b",
        "999.1.1.1",
        "1.2.3",
        "host!",
        "-a",
        "a..b",
        "::1::",
        "[::1",
        "h\n",
        "a" * 254,
        "[a]",
        "é",
    ),
    SettingKind.ADDRESS: ("localhost", "1.2.3.4.5", " 1.2.3.4", "1.2.3.4\n", "\uff11.2.3.4"),
    SettingKind.SECRET: (
        "Off",
        "fifteen-letters",
        "a secret of many words",
        "sixteen-letters\n",
        "\u00e9" * 16,
        "a" * 257,
    ),
    SettingKind.PATH: (" ", " /job", "/job ", "/jo\nb", "/jo\x1bb", "/jo\udc80b"),
}


def _name(row: Setting) -> str:
    return row.name


def _assert_names(error: SettingError, row: Setting, shown: str) -> None:
    text = str(error)
    assert text.startswith(f"{error.code}: ")
    assert row.name in text
    assert shown in text
    assert row.rule in text
    next_step = row.instead if row.instead and shown == "not set" else f"for example {row.name}={row.example}"
    assert next_step in text
    assert "\n" not in text
    assert len(text) < 600
    assert error.parts["field"] == row.name


@pytest.mark.parametrize("row", [row for row in HONOURED if row.required], ids=_name)
def test_a_required_variable_that_is_missing_is_named(row: Setting) -> None:
    error = refusal({name: value for name, value in WORKER.items() if name != row.name})

    assert error.code == "SETTING_MISSING"
    _assert_names(error, row, "not set")
    assert row.required in str(error)


@pytest.mark.parametrize("row", [row for row in HONOURED if not row.required], ids=_name)
def test_an_optional_variable_that_is_missing_takes_its_default(row: Setting) -> None:
    settings = config.load({name: value for name, value in WORKER.items() if name != row.name})

    source = next(source for source in settings.sources if source.name == row.name)
    assert (source.value, source.source) == (row.default, "default")


@pytest.mark.parametrize("row", HONOURED, ids=_name)
def test_an_empty_variable_is_named(row: Setting) -> None:
    error = refusal(with_value(row, ""))

    assert error.code == "SETTING_MISSING"
    _assert_names(error, row, "is empty")


@pytest.mark.parametrize("row", [row for row in HONOURED if row.kind in NUMBERS], ids=_name)
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number_is_refused_as_of_the_wrong_type(row: Setting, value: str) -> None:
    error = refusal(with_value(row, value))

    assert error.code == "SETTING_TYPE"
    _assert_names(error, row, repr(value))


@pytest.mark.parametrize(
    "row", [row for row in HONOURED if row.kind is not SettingKind.DECIMAL_SECONDS], ids=_name
)
def test_a_decimal_is_refused_where_a_whole_number_is_needed(row: Setting) -> None:
    if row.kind not in (SettingKind.INTEGER, SettingKind.SECONDS):
        return
    assert refusal(with_value(row, "5.5")).code == "SETTING_TYPE"


@pytest.mark.parametrize(
    ("row", "value"),
    [(row, value) for row in HONOURED for value in WRONG_KIND.get(row.kind, ())],
    ids=lambda part: part.name if isinstance(part, Setting) else ascii(part)[:20],
)
def test_what_is_no_host_path_or_node_id_is_refused_as_of_the_wrong_type(row: Setting, value: str) -> None:
    error = refusal(with_value(row, value))

    assert error.code == "SETTING_TYPE"
    if row.kind is SettingKind.SECRET:
        _assert_names(error, row, "(not shown)")
        assert value.strip() not in str(error).replace(row.rule, "")
    else:
        _assert_names(error, row, repr(value) if len(value) <= 80 else value[:80])


@pytest.mark.parametrize(
    ("row", "value"),
    [(row, value) for row in HONOURED for value in out_of_range(row)],
    ids=lambda part: part.name if isinstance(part, Setting) else ascii(part)[:20],
)
def test_what_is_out_of_range_is_refused_as_out_of_range(row: Setting, value: str) -> None:
    error = refusal(with_value(row, value))

    assert error.code == "SETTING_RANGE"
    _assert_names(error, row, repr(value) if len(value) <= 80 else value[:80])


@pytest.mark.parametrize(
    "row",
    [row for row in HONOURED if row.kind in NUMBERS and row.name != "MS_RETRY_INTERVAL_UPPER"],
    ids=_name,
)
def test_both_ends_of_a_range_are_taken(row: Setting) -> None:
    patient = {"MS_NODE_TIMEOUT": "86400", "MS_RECEIVE_MSG_TIMEOUT": "86400"}
    for value in (row.low, row.high):
        settings = config.load({**WORKER, **patient, row.name: str(value)})
        assert str(value) in {source.value for source in settings.sources if source.name == row.name}


@pytest.mark.parametrize("row", HONOURED, ids=_name)
def test_a_rule_names_the_bounds_that_are_checked(row: Setting) -> None:
    for bound in (row.low, row.high):
        assert bound is None or str(bound) in row.rule
    for word in row.choices:
        assert word in row.rule
    assert config.load(with_value(row, row.example)).rules.worker_count > 0


@pytest.mark.parametrize("row", UNTOUCHED, ids=_name)
@pytest.mark.parametrize("value", ["", "0", "abc", "9" * 5_000])
def test_a_variable_without_effect_takes_anything(row: Setting, value: str) -> None:
    with_it, without = config.load(with_value(row, value)), config.load(WORKER)

    assert with_it.rules == without.rules
    assert next(source for source in with_it.sources if source.name == row.name).value == value
    assert row.fate is Fate.PASSED_THROUGH or row.because


def test_the_table_holds_every_variable_of_the_dynamic_cluster() -> None:
    contract = {
        "MS_ROLE",
        "MS_SCHED_HOST",
        "MS_SCHED_PORT",
        "MS_NODE_ID",
        "MS_WORKER_NUM",
        "MS_SERVER_NUM",
        "MS_WORKER_IP",
        "MS_ENABLE_RECOVERY",
        "MS_RECOVERY_PATH",
        "MS_TOPO_TIMEOUT",
        "MS_NODE_TIMEOUT",
        "MS_RECEIVE_MSG_TIMEOUT",
        "MS_RETRY_INTERVAL_LOWER",
        "MS_RETRY_INTERVAL_UPPER",
        "MS_DISABLE_HEARTBEAT",
        "MS_HEARTBEAT_RETRY_TIMEOUT",
        "MS_ENABLE_LCCL",
        "MS_DISABLE_LCCL_KERNELS_LIST",
        "MS_HCCL_CM_INIT",
        "MS_CLUSTER_RETRY_NUM",
        "MS_RECOVERY_INTERVAL",
        "MS_SCHED_MANAGE_PORT",
        "MS_COMM_TYPE",
        "MS_INTERFACE",
    }
    names = [row.name for row in SETTINGS]

    assert contract <= set(names)
    assert len(names) == len(set(names))
