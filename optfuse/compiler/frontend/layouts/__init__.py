"""Memory layouts that libraries are fast in."""
