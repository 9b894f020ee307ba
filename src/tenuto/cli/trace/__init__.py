"""`tenuto trace`: a picture of a trace file.

Takes spans, of a file or of a bench. Gives an SVG: rows of boxes over a time axis, and how much of the loads is hidden.
Never: measures anything; asks for a library.
"""
