"""Why two ops may not share a kernel, as far as the loops tell: dependences and walks."""

from __future__ import annotations

from dataclasses import dataclass

from optfuse.compiler.analysis.dependence import Dependence
from optfuse.compiler.analysis.edge_legality import why_apart
from optfuse.compiler.extract.extraction import Extraction
from optfuse.compiler.ir.nodes import LoopNest


@dataclass(frozen=True, slots=True)
class ExtractionDetails:
    """The ``Details`` (``problem.refusal_reasons``) of an extraction. Scheme s is walk s - 1."""

    extraction: Extraction

    def edge(self, source: int, target: int, scheme: int) -> str | None:
        """Why a value cannot pass from one op to another in registers in a scheme; None if it can."""
        for dependence in self._between(source, target):
            reason = self._why(dependence, scheme - 1)
            if reason is not None:
                return reason
        return None

    def no_scheme(self, left: int, right: int) -> str | None:
        """Why two ops have no scheme in common: their index spaces differ, or a walk that both fit is not offered."""
        places, walks = self.extraction.placements.places, self.extraction.placements.walks
        common = sorted(places[left].keys() & places[right].keys())
        if not common:
            spaces = [_space(self.extraction, op) for op in (left, right)]
            return f"no walk takes both: {spaces[0]}, {spaces[1]}" if all(spaces) else None
        for walk in common:
            for dependence in self._between(min(left, right), max(left, right)):
                reason = self._why(dependence, walk)
                if reason is not None:
                    return reason
        return (
            f"both would fit {walks[common[0]].name}, but no chain of values or common reads that no library call "
            "cuts ties both of them to what it is for"
        )

    def _between(self, source: int, target: int) -> list[Dependence]:
        return [d for d in self.extraction.dependences if (d.src, d.dst) == (source, target)]

    def _why(self, dependence: Dependence, walk: int) -> str | None:
        if dependence.buffer is None:
            return "order: the two must run one after the other (side effects)"
        return why_apart(dependence, walk, self.extraction.placements, self.extraction.touched)


def _space(extraction: Extraction, op: int) -> str:
    nest = extraction.graph.ops[op]
    if not isinstance(nest, LoopNest):
        return ""
    points = " x ".join(map(str, nest.sizes)) or "1"
    verb = "reduces" if nest.scan is None else "scans"
    reduced = f", {verb} {' x '.join(map(str, nest.rsizes))}" if nest.rsizes else ""
    return f"{nest.name} runs over {points}{reduced}"
