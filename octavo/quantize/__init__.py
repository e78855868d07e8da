"""How weights get fewer bits: recipe, pre-flight, calibration, rounding methods, the walk, the journal, provenance.

Owns: which codes a weight gets, what they are calibrated on, how a killed run goes on, what `octavo.json` says.
Does not own: number grids (`numerics`), file formats (`weights`), model maths (`models`), quality (`measure`).
"""
