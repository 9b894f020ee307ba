"""`tenuto serve`: an OpenAI-compatible vLLM with our connector set up.

Takes a model, settings and vLLM's own options; gives one command line, shown and then run. Never speaks to the server.
"""
