"""`tenuto doctor`: whether this machine is fit for tenuto, and what to do where it is not.

A check takes what it looks at (files of the kernel, limits, programs) and gives `finding`s; `machine`, `disk`,
`software`, `devices` and `lanes` have them; `examination` runs them so that none can stop the others.
"""
