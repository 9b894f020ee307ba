"""`tenuto top`: engines as they live, in a terminal.

Takes event streams and metrics endpoints, either alone. Gives a picture of them again and again, or once, as text or
JSON.
Never: changes anything; asks an engine for more than its events and its metrics.
"""
