"""What a run has left, drawn, told and compared."""
