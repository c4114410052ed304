"""What every bench shares: the machine, tables, processes that measure, medians."""
