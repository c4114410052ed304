"""Networks made here, with random weights from fixed seeds, that are not the paper's."""
