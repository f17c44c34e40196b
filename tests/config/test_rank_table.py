"""A rank table describes this job, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recovery.config import rank_table
from recovery.errors import RecoveryError, SettingError

TABLES = Path(__file__).parents[2] / "examples" / "rank_tables"


def table(**fields: Any) -> dict[str, Any]:
    """As MindSpore's documents show it, for two hosts with one device each."""
    servers = [
        {
            "server_id": f"10.0.0.{number}",
            "device": [{"device_id": "0", "device_ip": f"10.1.0.{number}", "rank_id": str(number)}],
            "host_nic_ip": "reserve",
        }
        for number in range(2)
    ]
    return {"version": "1.0", "server_count": "2", "server_list": servers, "status": "completed", **fields}


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_the_documents_table_is_taken(tmp_path: Path) -> None:
    rank_table.read_rank_table(write(tmp_path / "t.json", table()), field="RANK_TABLE_FILE", worker_num=2)


@pytest.mark.parametrize(("ranks", "hosts"), [(2, 1), (8, 1), (16, 2)])
def test_the_examples_tables_name_every_rank_and_where_the_first_one_is(ranks: int, hosts: int) -> None:
    path = TABLES / f"rank_table_{ranks}pcs.json"
    found = rank_table.read_rank_table(path, field="RANK_TABLE_FILE", worker_num=ranks)

    assert found.ranks == list(range(ranks))
    assert len(found.server_list) == hosts
    assert found.first_host == "10.155.111.140"


@pytest.mark.parametrize("content", [b'"\xff"', b"[" * 100_000, b""], ids=["no UTF-8", "nested", "empty"])
def test_bytes_that_are_no_table_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)

    with pytest.raises(SettingError, match=r"SETTING_CONFLICT: .*is no rank table"):
        rank_table.read_rank_table(path, field="RANK_TABLE_FILE")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (table(status="initializing"), "its status is 'initializing', not 'completed'"),
        (table(server_count="3"), "server_count is 3, but 2 servers are listed"),
        (table(server_count=2), "is no rank table: Expected `str`, got `int`"),
        (table(server_list=[]), "is no rank table"),
        ([], "is no rank table"),
    ],
)
def test_another_table_is_refused(tmp_path: Path, content: object, reason: str) -> None:
    with pytest.raises(RecoveryError) as refused:
        rank_table.read_rank_table(write(tmp_path / "t.json", content), field="RANK_TABLE_FILE", worker_num=2)
    assert reason in str(refused.value)
    assert str(tmp_path / "t.json") in str(refused.value)


def test_other_ranks_than_the_jobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecoveryError, match=r"its ranks are \[0, 1\], not 0 to 3, as a job of 4"):
        rank_table.read_rank_table(write(tmp_path / "t.json", table()), field="RANK_TABLE_FILE", worker_num=4)


def test_an_absent_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecoveryError, match="cannot be read"):
        rank_table.read_rank_table(tmp_path / "none.json", field="RANK_TABLE_FILE", worker_num=2)
