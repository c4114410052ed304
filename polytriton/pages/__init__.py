"""Results files as one page, as tables in a terminal and as a summary for programs."""
