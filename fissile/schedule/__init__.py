"""Scheduling: a kernel of the plan becomes a loop program by an explicit schedule (DESIGN 3.5, 3.6)."""
