"""Measurements as one self-contained HTML page: inline SVG, light and dark, a table under every plot.

Owns: charts, the page's looks, what is told of a checkpoint and in which order.
Does not own: measuring (`octavo.measure.compare`, `octavo.measure.evaluate`); it runs no model and reads no weights.
"""
