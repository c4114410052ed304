"""The paper's evaluation: its networks' shapes with trained weights, its radii, its methods, its tables beside ours."""
