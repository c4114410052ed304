"""Decides: properties as rows over boxes, which try comes next, several devices, the largest certified radius."""
