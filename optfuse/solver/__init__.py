"""The solver: from a fusion problem to a schedule with a proof. It needs no torch.

``solve.solve`` is the entry: rules, greedy's start, blocks, memory. ``solve_blocks`` divides the time among blocks;
``solve_block`` lists the strategies for one. Each folder says in its first line what it holds; imports go one way:
control, memory, reduce, rules, baseline, columns, bounds, master and slots, strategies, joint, explain; the files
beside this one come between strategies and explain.
"""
