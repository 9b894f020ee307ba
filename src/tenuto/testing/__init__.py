"""For tests of code that uses tenuto: fakes, faults, contract suites."""
