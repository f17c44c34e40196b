"""Who may send what: every message, by every principal, before and after its admission."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from recovery.core import messages as m
from recovery.core.ids import Generation, NodeId, Rank, ResumeToken
from recovery.core.principals import (
    SENDERS,
    AuthMethod,
    Membership,
    Principal,
    PrincipalKind,
    claimed,
    violation,
)
from recovery.core.rules import Rules
from recovery.core.scheduler.effects import CloseConnection
from recovery.core.scheduler.stimuli import MessageReceived
from tests.core.desk import Desk, registration, running_workers
from tests.golden.messages import examples

_from_node: msgspec.json.Decoder[m.FromNode] = msgspec.json.Decoder(m.FromNode)

SAID: dict[str, m.FromNode] = {
    row["content"]["type"]: _from_node.decode(msgspec.json.encode(row["content"]))
    for row in examples()
    if row["sender"] == "node" and row["fields"] == "required"
}
"""One of each message. Names of nodes in it are worker_3."""

WHO: dict[str, Principal] = {
    "node": Principal(kind=PrincipalKind.NODE, name="worker_3", known=AuthMethod.TOKEN),
    "launcher": Principal(kind=PrincipalKind.LAUNCHER, name="10.0.0.1", known=AuthMethod.TOKEN),
    "viewer": Principal(kind=PrincipalKind.VIEWER, name="", known=AuthMethod.CERTIFICATE),
}

MEMBERS_SAY = {
    "ready", "heartbeat", "checkpoint_report", "checkpoint_invalid", "not_saved", "copy_failed", "copy_report", "upload_report", "state_loaded", "first_step",
    "collective_failed", "failure", "done", "leave", "depart", "stop_training", "position",
}  # fmt: skip

MAY: dict[tuple[str, str], set[str]] = {
    ("node", "not admitted"): {"register"},
    ("node", "standby"): {"register"} | MEMBERS_SAY,
    ("node", "rank 1"): {"register"} | MEMBERS_SAY,
    ("node", "rank 0"): {"register", "rendezvous_open"} | MEMBERS_SAY,
    ("launcher", "not admitted"): {"exited", "stop_job"},
    ("viewer", "not admitted"): set(),
}
"""By what is at the other end, and how far it is: everything that it may say."""

STANDING: dict[str, tuple[NodeId | None, Rank | None]] = {
    "not admitted": (None, None),
    "standby": (NodeId("worker_3"), None),
    "rank 1": (NodeId("worker_3"), Rank(1)),
    "rank 0": (NodeId("worker_3"), Rank(0)),
}


def test_every_message_has_its_row_and_every_row_a_message() -> None:
    assert set(SENDERS) == set(get_args(m.FromNode)) == {type(message) for message in SAID.values()}


@pytest.mark.parametrize("tag", SAID)
@pytest.mark.parametrize(("who", "membership"), MAY)
def test_each_principal_may_say_what_is_its_own_and_nothing_else(who: str, membership: str, tag: str) -> None:
    member, rank = STANDING[membership]
    fault = violation(WHO[who], SAID[tag], member=member, rank=rank)
    assert (fault == "") is (tag in MAY[who, membership]), fault


@pytest.mark.parametrize("tag", SAID)
@pytest.mark.parametrize("who", WHO)
def test_what_one_may_not_say_has_no_effect_but_the_end_of_its_connection(who: str, tag: str) -> None:
    desk = Desk(Rules(worker_count=2))
    running_workers(desk)
    before = (desk.machine.state.job, [node.record for node in desk.machine.state.nodes.values()])
    said = MessageReceived(desk.connect(), SAID[tag], "10.0.0.1", ResumeToken("t"), WHO[who])

    effects = desk.machine.handle(said, desk.now)

    closes = [effect for effect in effects if isinstance(effect, CloseConnection) and effect.is_fault]
    if tag in MAY[who, "not admitted"]:
        assert closes == []
    else:
        assert effects == closes
        assert len(closes) == 1
        assert before == (desk.machine.state.job, [node.record for node in desk.machine.state.nodes.values()])


def test_a_node_registers_under_the_name_that_it_has_proven_and_no_other() -> None:
    desk = Desk(Rules(worker_count=2))
    proven = Principal(kind=PrincipalKind.NODE, name="worker_1", known=AuthMethod.CERTIFICATE)
    connection = desk.connect()
    assert desk.say(connection, registration(), proven) == []
    assert connection in desk.closed
    assert desk.machine.state.nodes == {}
    answers = desk.say(desk.connect(), registration(node_id="worker_1"), proven)
    assert [type(answer) for answer in answers] == [m.Admitted]


def test_only_rank_0_may_name_the_rendezvous() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = running_workers(desk)
    second.send(m.RendezvousOpen(generation=second.generation, address="6.6.6.6:1"))
    assert desk.machine.state.rendezvous is None
    assert first.hears(m.Rendezvous) == 0
    assert second.connection in desk.closed
    assert first.connection not in desk.closed


def test_an_admitted_node_stays_itself_where_nobody_proves_anything() -> None:
    desk = Desk(Rules(worker_count=2))
    first, second = running_workers(desk)
    first.send(m.Exited(node_id=second.node_id, pid=1, reason="killed", gives_up=True))
    second.die()
    desk.at(desk.now + 10)
    assert not desk.machine.state.job_ended, "a worker has ended the job by a launcher's word"
    other = claimed(registration(node_id="worker_9"), peer="h", member=NodeId("worker_0"))
    assert other == Principal(kind=PrincipalKind.NODE, name="worker_0", known=AuthMethod.CLAIMED)


def test_who_claims_something_is_what_its_first_message_says() -> None:
    exited = m.Exited(node_id=NodeId("worker_0"), pid=1, reason="")
    assert claimed(exited, peer="10.0.0.7", member=None).kind is PrincipalKind.LAUNCHER
    assert claimed(registration(), peer="10.0.0.7", member=None).name == "worker_0"
    beat = m.Heartbeat(sequence=1, generation=Generation(1), step=0)
    nobody = claimed(beat, peer="10.0.0.7", member=None)
    assert violation(nobody, beat, member=None, rank=None) == "not registered"


def test_the_rows_say_nothing_that_no_principal_can_be() -> None:
    for message, sender in SENDERS.items():
        if sender.kind is not PrincipalKind.NODE:
            assert sender.membership is Membership.ANY, f"{message} is of a principal that is never admitted"
