"""`tenuto simulate`: policies and capacities on a recorded trace.

Takes a trace file, policies, capacities and bandwidths. Gives a table, JSON rows, or a picture.
"""
