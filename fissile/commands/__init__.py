"""What the commands of the command line share, and the commands that compare (see `fissile.cli`)."""
