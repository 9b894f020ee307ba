"""Engines in, sessions out. `session` is engine-neutral; each engine's folder only translates."""
