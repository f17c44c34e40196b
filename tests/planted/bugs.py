"""The table of planted bugs: every one is a mistake that somebody could make, and a test must notice it by name."""

from __future__ import annotations

from tests.planted.adopted import ADOPTED
from tests.planted.audit import AUDIT
from tests.planted.bug import Bug
from tests.planted.captures import CAPTURES
from tests.planted.drain import DRAIN
from tests.planted.drain_orders import DRAIN_ORDERS
from tests.planted.durability import DURABILITY
from tests.planted.ends import ENDS
from tests.planted.files import FILES
from tests.planted.growth import GROWTH
from tests.planted.held_copies import HELD_COPIES
from tests.planted.last_messages import LAST_WORDS
from tests.planted.launcher import LAUNCHER
from tests.planted.live_agreement import LIVE_AGREEMENT
from tests.planted.lost_store import LOST_STORE
from tests.planted.lost_work import LOST_WORK
from tests.planted.memory import MEMORY
from tests.planted.numbers import NUMBERS
from tests.planted.object_storage import OBJECT_STORAGE
from tests.planted.principals import PRINCIPALS
from tests.planted.proofs import PROOFS, WAITING
from tests.planted.protocol import PROTOCOL
from tests.planted.rollback import ROLLBACK
from tests.planted.rollback_live import ROLLBACK_LIVE
from tests.planted.secure_channel import SECURE_CHANNEL
from tests.planted.session import SESSION
from tests.planted.sharded import SHARDED
from tests.planted.shared import SHARED
from tests.planted.simulated import SIMULATED
from tests.planted.standbys import STANDBYS
from tests.planted.survivors import SURVIVORS
from tests.planted.template import TEMPLATE
from tests.planted.tiers import TIERS
from tests.planted.training import TRAINING
from tests.planted.training_stop import TRAINING_STOP
from tests.planted.transfers import TRANSFERS

BUGS: tuple[Bug, ...] = (
    DURABILITY
    + ADOPTED
    + AUDIT
    + CAPTURES
    + DRAIN
    + DRAIN_ORDERS
    + SECURE_CHANNEL
    + SESSION
    + ROLLBACK
    + ROLLBACK_LIVE
    + PROTOCOL
    + PRINCIPALS
    + PROOFS
    + WAITING
    + ENDS
    + FILES
    + GROWTH
    + HELD_COPIES
    + MEMORY
    + LAST_WORDS
    + LAUNCHER
    + LIVE_AGREEMENT
    + LOST_STORE
    + LOST_WORK
    + NUMBERS
    + OBJECT_STORAGE
    + SHARDED
    + SHARED
    + SIMULATED
    + STANDBYS
    + SURVIVORS
    + TEMPLATE
    + TIERS
    + TRAINING
    + TRAINING_STOP
    + TRANSFERS
)
