"""`tenuto advisor`: which blocks of the disk tiers of a node's engines lie on which volume.

Takes settings from a file and options. Gives a process that runs until it is told to end.
"""
