"""Which role sits on which slot, and how Ray holds them there."""

from dataclasses import dataclass
from typing import Any

_SLOT = "wsync_slot"  # a custom resource: one a slot, so that slots exist without GPUs too


@dataclass(frozen=True)
class Placement:
    """``num_pairs`` slots with trainer ranks and an engine each, and one for the services.

    Attributes:
        trainers_per_pair: ranks on one slot.
        num_gpus: GPUs of this host; with fewer than slots, the placement is emulated.
    """

    num_pairs: int
    num_gpus: int
    trainers_per_pair: int = 1

    @property
    def num_slots(self) -> int:
        return self.num_pairs + 1

    @property
    def emulated(self) -> bool:
        """True when slots are not GPUs: actors share the host's cores."""
        return self.num_gpus < self.num_slots

    @property
    def roles(self) -> list[list[str]]:
        """Roles by slot, as records name them."""
        each = self.trainers_per_pair
        trainers = [
            [f"trainer:{rank}" for rank in range(pair * each, (pair + 1) * each)]
            for pair in range(self.num_pairs)
        ]
        pairs = [[*ranks, f"engine:{pair}"] for pair, ranks in enumerate(trainers)]
        return [*pairs, ["reference", "reward"]]

    def cluster_resources(self) -> dict[str, Any]:
        """Arguments of ``ray.init`` for a host that holds every slot."""
        return {"num_cpus": self._actors_per_slot * self.num_slots, "resources": {_SLOT: self.num_slots}}

    def bundles(self) -> list[dict[str, float]]:
        """A placement group's bundles, one a slot."""
        gpu = {} if self.emulated else {"GPU": 1.0}
        return [{"CPU": float(self._actors_per_slot), _SLOT: 1.0} | gpu for _ in range(self.num_slots)]

    def actor_options(self) -> dict[str, Any]:
        """Ray options of one of the actors of a slot."""
        share = 1 / self._actors_per_slot
        return {"num_cpus": 1, "num_gpus": 0 if self.emulated else share, "resources": {_SLOT: share}}

    @property
    def _actors_per_slot(self) -> int:
        return 1 + self.trainers_per_pair
