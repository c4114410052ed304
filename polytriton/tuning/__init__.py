"""Looks for the fastest sound configuration of a compiled network on a machine. Nothing here runs when a network is verified."""
