"""What machine code and a model say of a GPU that is not here."""
