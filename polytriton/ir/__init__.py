"""The two intermediate representations, their text, their checker and the float64 reference interpreter."""
