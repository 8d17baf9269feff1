"""What callbacks share: argument checks, cadence, console lines, watched metrics."""
