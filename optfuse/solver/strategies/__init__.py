"""The strategies that improve a block's incumbent or bound; ``solver.solve_block`` lists them in order."""
