"""TorchInductor's own greedy fusion as a third answer beside our greedy's and the solver's.

wire        a captured graph as plain data, and back: what goes to the process in which Inductor runs
ask         that process: started, limited, and its answer or the reason why there is none
worker      what runs there (the only user of ``torch._inductor``)
device      a GPU for Inductor to compile for where there is none
groups      its answer as plain data: kernels and library calls, with the graph nodes that each computes
mapping     its kernels as sets of our ops, and what could not be mapped
legal       these sets as a solution that the checker accepts
agreement   how alike two partitions are
compare     Inductor, greedy and solver in one table
"""
