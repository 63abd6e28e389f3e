"""Is it right, and is it fast: fissile beside other engines, and its own levels beside each other (DESIGN 6)."""
