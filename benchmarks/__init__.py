"""Measured on this machine: beside peers (`peers`), and how Octavo grows (`growth`)."""
