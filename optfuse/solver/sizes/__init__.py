"""Where a plan holds, and what it costs, when sizes change."""
