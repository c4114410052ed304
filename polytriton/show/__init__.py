"""How numbers, verdicts and pixels are shown, wherever that is."""
