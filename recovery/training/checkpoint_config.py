"""When to save and what to keep: MindSpore's CheckpointConfig, same names, order and rules."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.checkpoint.retention import Rule
from recovery.errors import SettingError


@dataclass(frozen=True, init=False)
class CheckpointConfig:
    """A checked configuration. What another setting overrules reads 0 here."""

    save_checkpoint_steps: int
    """Save at each multiple of so many steps, counted over all epochs and failures; 0: by seconds."""
    save_checkpoint_seconds: int
    """Save when so many seconds have passed since the last commit on the ranks' disks, looked at after each step; 0: by steps."""
    keep_checkpoint_max: int
    """Keep so many, the newest; 0: by minutes."""
    keep_checkpoint_per_n_minutes: int
    """Keep one per so many minutes; 0: by number."""
    integrated_save: bool
    """True: every rank's file holds the full state, as in data parallel training. False: its shard."""
    async_save: bool
    """True: a thread writes a copy of the state while training goes on. A state of PyTorch costs a step one copy either way."""

    def __init__(
        self,
        save_checkpoint_steps: int | None = 1,
        save_checkpoint_seconds: int | None = 0,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_per_n_minutes: int | None = 0,
        integrated_save: bool = True,
        async_save: bool = False,
    ) -> None:
        """Check and settle the values: steps win over seconds, the number to keep wins over minutes, None counts as 0.

        With neither a number nor minutes to keep by, one checkpoint is kept, as MindSpore does.

        Raises:
            SettingError: a value is of another type; a number is negative, or all four are 0 or None.
        """
        steps = _count("save_checkpoint_steps", save_checkpoint_steps)
        seconds = _count("save_checkpoint_seconds", save_checkpoint_seconds)
        kept = _count("keep_checkpoint_max", keep_checkpoint_max)
        minutes = _count("keep_checkpoint_per_n_minutes", keep_checkpoint_per_n_minutes)
        if not (steps or seconds or kept or minutes):
            raise SettingError(
                "SETTING_RANGE",
                field="CheckpointConfig",
                value=0,
                rule="save_checkpoint_steps, save_checkpoint_seconds, keep_checkpoint_max and "
                "keep_checkpoint_per_n_minutes can't be all None or 0",
                next_step="Set when to save, for example save_checkpoint_steps=100.",
            )
        settled: dict[str, int | bool] = {
            "save_checkpoint_steps": steps,
            "save_checkpoint_seconds": 0 if steps else seconds,
            "keep_checkpoint_max": kept if kept or minutes else 1,
            "keep_checkpoint_per_n_minutes": 0 if kept else minutes,
            "integrated_save": _switch("integrated_save", integrated_save),
            "async_save": _switch("async_save", async_save),
        }
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    @property
    def sentence(self) -> str:
        """When it saves and what it keeps, for people."""
        steps, seconds = self.save_checkpoint_steps, self.save_checkpoint_seconds
        by_steps = "at every step" if steps == 1 else f"every {steps} steps"
        when = by_steps if steps else f"every {seconds} s" if seconds else "behind the last step"
        kept, minutes = self.keep_checkpoint_max, self.keep_checkpoint_per_n_minutes
        stays = f"the newest {kept} stay" if kept else f"one per {minutes} minutes stays"
        return f"the state is saved {when}, {stays}"

    def check_for_recovery(self) -> None:
        """Refuse what could leave the job without a checkpoint to go back to.

        Raises:
            SettingError: fewer than two are kept, or nothing says when to save.
        """
        if self.keep_checkpoint_max == 1:
            raise SettingError(
                "SETTING_RANGE",
                field="keep_checkpoint_max",
                value=self.keep_checkpoint_max,
                rule="must be at least 2 when recovery is on: a save can fail half-way, and ranks can be one save apart, "
                "so the one before must still be there",
                next_step="Set keep_checkpoint_max=2 or more, or MS_ENABLE_RECOVERY=0.",
            )
        if not (self.save_checkpoint_steps or self.save_checkpoint_seconds):
            raise SettingError(
                "SETTING_RANGE",
                field="save_checkpoint_steps",
                value=self.save_checkpoint_steps,
                rule="must be at least 1 (or save_checkpoint_seconds) when recovery is on: with neither there is nothing "
                "to go back to before training ends",
                next_step="Set when to save, for example save_checkpoint_steps=100.",
            )


def rule_of(config: CheckpointConfig) -> Rule:
    """What retention goes by."""
    return Rule(
        keep_checkpoint_max=config.keep_checkpoint_max,
        keep_checkpoint_per_n_minutes=config.keep_checkpoint_per_n_minutes,
    )


def _count(field: str, value: object) -> int:
    """A whole number from 0; None counts as 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(
            "SETTING_TYPE",
            field=field,
            value=value,
            rule=f"must be a whole number or None, not {type(value).__name__}",
            next_step=f"Set it to a number, for example {field}=5.",
        )
    if value < 0:
        raise SettingError(
            "SETTING_RANGE",
            field=field,
            value=value,
            rule="must be a whole number from 0 (0: off)",
            next_step=f"Set it to 0 or more, for example {field}=5.",
        )
    return value


def _switch(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise SettingError(
            "SETTING_TYPE",
            field=field,
            value=value,
            rule=f"must be True or False, not {type(value).__name__}",
            next_step=f"Set {field}=True or {field}=False.",
        )
    return value
