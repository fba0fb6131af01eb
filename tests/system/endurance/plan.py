"""When a run does what, as a function of its length. Pure."""

import random
from dataclasses import dataclass
from typing import Final

STEADY: Final = "dispatcher 1"
OTHER: Final = "dispatcher 2"
RECEIVER: Final = "receiver"
ROLES: Final = (STEADY, OTHER, RECEIVER)

LONG_S: Final = 600.0  # from here on descriptors, threads and the queue's file are judged
SLOPE_S: Final = 1_200.0  # and from here on memory
TWO_CYCLES_S: Final = 2_700.0


@dataclass(frozen=True)
class Plan:
    """A run of `seconds` is one or two cycles, each a storm and then a calm.

    In the first storm any of the three processes is killed, in the second one all but the first dispatcher, in a
    calm only the second dispatcher: so one dispatcher lives for nine tenths of a long run, and the receiver for
    most of a cycle.
    """

    seconds: float

    @property
    def is_long(self) -> bool:
        return self.seconds >= LONG_S

    @property
    def tells_slopes(self) -> bool:
        """Whether processes live so long that a slope is told from the steps in which an allocator grows."""
        return self.seconds >= SLOPE_S

    @property
    def cycles(self) -> int:
        return 2 if self.seconds >= TWO_CYCLES_S else 1

    @property
    def storm_share(self) -> float:
        return 0.2 if self.seconds >= 120 else 0.6

    @property
    def retention_ms(self) -> int:
        """How long an ended job is kept: many times the second between two looks."""
        return 20_000 if self.seconds >= 120 else 5_000

    def is_storm(self, at_s: float) -> bool:
        return at_s < self.seconds and self._in_cycle(at_s) < self.storm_share

    def victims(self, at_s: float) -> tuple[str, ...]:
        """Return who may be killed at this moment."""
        if not self.is_storm(at_s):
            return (OTHER,)
        return ROLES if at_s < self.seconds / self.cycles else (OTHER, RECEIVER)

    def pause_s(self, at_s: float, rng: random.Random) -> float:
        """Return how long to wait from one kill to the next."""
        if self.is_storm(at_s):
            return rng.uniform(1.0, 6.0) if self.seconds >= 120 else rng.uniform(1.0, 2.5)
        return rng.uniform(10.0, 40.0) if self.seconds >= 120 else rng.uniform(2.0, 4.0)

    def _in_cycle(self, at_s: float) -> float:
        length = self.seconds / self.cycles
        return at_s % length / length
