"""The suites of bounds' speed, on the CPU or a GPU."""
