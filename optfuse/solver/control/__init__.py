"""The solver's options, clock, progress reports and stopping, which all its parts share."""
