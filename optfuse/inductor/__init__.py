"""TorchInductor's own greedy fusion as a third answer beside our greedy's and the solver's.

graph_record        a captured graph as JSON data, and back
process             runs Inductor in a process of its own; returns its kernels, or raises with the reason
worker              the main program of that process
inductor_graph      a graph record as the FX graph that AOTAutograd would give to Inductor
attention_operator  an attention operator that Inductor does not decompose
device              a description of a GPU to compile for on a machine without one
schedule_record     the decisions of Inductor's scheduler as JSON data
groups              these decisions as dataclasses: kernels and library calls, with the graph nodes that each computes
mapping             Inductor's kernels as sets of our ops, and what could not be mapped
legalize            these sets as a solution that the checker accepts
agreement           how similar two partitions are
compare             Inductor, greedy and solver in one table
partition           a solution as graph nodes and kernel numbers
impose              Inductor's scheduler made to build the kernels of such a partition
loop_orders         a pointwise node's loops reordered to match a reduction's
run                 a graph compiled by Inductor, as a program that runs in the place of ours
"""
