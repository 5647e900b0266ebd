"""What every part of the solver is told: options, the clock, who hears of progress, how CP-SAT is run."""
