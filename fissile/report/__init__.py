"""What `fissile report` shows: `record` is kept in the artifact by the compiler, `page` becomes HTML."""
