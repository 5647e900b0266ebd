"""Alternatives of ours and kernels of Inductor: of each variant one runs, the one nearest to its choice."""

from __future__ import annotations

from optfuse.compiler.extract.extraction import Extraction
from optfuse.inductor.compare import inductor_answer
from optfuse.problem.checker import check
from tests.inductor.models import patches, projected
from tests.inductor.test_mapping import groups, launch, part


def kernels_of(extraction: Extraction, *launches: tuple[str, ...], templates: tuple[str, ...] = ()) -> list[set[str]]:
    """Our kernels by names, of launches by nodes: library calls and templates are told by their first node."""
    library = {op.name for op in extraction.instance.ops if op.kind != "loop"}
    given = [
        launch(
            part(*nodes), kind="template" if nodes[0] in templates else "library" if nodes[0] in library else "loops"
        )
        for nodes in launches
    ]
    answer = inductor_answer(extraction, groups(*given))
    assert not check(extraction.instance, answer.solution)
    return [{extraction.instance.ops[op].name for op in kernel.ops} for kernel in answer.solution.kernels]


def test_a_template_is_a_dot_with_what_inductor_fused_into_it() -> None:
    made = kernels_of(projected(), ("mm_default", "add_tensor", "add"), templates=("mm_default",))
    assert made == [{"mm_default_dot", "add_tensor", "add"}]


def test_a_product_of_the_library_runs_as_such() -> None:
    made = kernels_of(projected(), ("mm_default",), ("add_tensor", "add"))
    assert made == [{"mm_default"}, {"add_tensor", "add"}]


def test_what_inductor_computes_where_it_is_moved_to_is_computed_there() -> None:
    extraction = patches()
    ((stored, computed),) = (variant.alternatives for variant in extraction.instance.variants)
    names = [op.name for op in extraction.instance.ops]
    nodes = {op.name: op.origin.node for op in extraction.graph.ops}
    norm = [nodes[name] for k, name in enumerate(names) if k not in {*stored, *computed}]
    calls = [name for name in norm if extraction.instance.ops[names.index(name)].kind != "loop"]
    loops = [(name,) for name in norm if name not in calls]
    moved = tuple(nodes[names[k]] for k in stored)
    made = kernels_of(extraction, *((name,) for name in calls), *loops, moved)
    assert {"cat_computing"} in made
    assert not any("cat" in kernel for kernel in made)
