"""The command line. Takes arguments and settings, gives words, tables and JSON.

Stands above everything and is imported by nothing. The only folder that reads the environment and
the only one that prints.
"""
