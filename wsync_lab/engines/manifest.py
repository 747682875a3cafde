"""Do the offered weights fit an engine? Every fault at once, before the engine is touched."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from wsync_lab.packing import describe
from wsync_lab.weights import ModuleSource, TensorMeta


@dataclass(frozen=True)
class ExpectedWeights:
    """The weights an engine takes, by checkpoint name, and the names it ties to one of them."""

    tensors: Mapping[str, TensorMeta]
    aliases: Mapping[str, str]

    @classmethod
    def of(cls, module: nn.Module) -> "ExpectedWeights":
        """The parameters of ``module``, which may lie on the meta device."""
        source = ModuleSource(module)
        return cls({meta.name: meta for meta in source.metadata()}, source.aliases())

    def faults(self, tensors: Sequence[TensorMeta], aliases: Mapping[str, str]) -> list[str]:
        """Why the manifest does not fit: one text a fault, in order of names; [] if it fits."""
        sent = {meta.name: meta for meta in tensors}
        found = [*self._of_tensors(sent), *self._missing(sent, aliases), *self._of_aliases(aliases)]
        return sorted(found)

    def _of_tensors(self, sent: Mapping[str, TensorMeta]) -> Iterator[str]:
        for name, meta in sent.items():
            expected = self.tensors.get(name)
            if expected is None and name in self.aliases:
                tied = self.aliases[name]
                yield f"{name} is sent, but the engine ties it to {tied}: tie it in the trainer"
            elif expected is None:
                yield f"{name} is unknown to the engine"
            elif expected != meta:
                takes = f"{expected.dtype}{list(expected.shape)}"
                yield f"{describe(meta)} is sent where the engine takes {takes}"

    def _missing(self, sent: Mapping[str, TensorMeta], aliases: Mapping[str, str]) -> Iterator[str]:
        for name in self.tensors.keys() - sent.keys() - aliases.keys():
            yield f"{name} is missing"

    def _of_aliases(self, aliases: Mapping[str, str]) -> Iterator[str]:
        for alias, name in aliases.items():
            if alias in self.tensors:
                yield f"{alias} is tied to {name} in the trainer, not in the engine: untie it or tie both"
            elif self.aliases.get(alias) != name:
                ties = self.aliases.get(alias, "nothing")
                yield f"{alias} is tied to {name} in the trainer, to {ties} in the engine"
