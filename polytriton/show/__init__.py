"""Results as pictures, tables and notebook cells."""
