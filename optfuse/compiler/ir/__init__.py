"""The loop IR: its nodes, verifier, printer and JSON form. The interpreter, which needs torch, is not imported here."""

from optfuse.compiler.ir.graph_json import graph_from_json, graph_to_json
from optfuse.compiler.ir.printer import print_graph, print_nest
from optfuse.compiler.ir.verify_graph import verify

__all__ = ["graph_from_json", "graph_to_json", "print_graph", "print_nest", "verify"]
