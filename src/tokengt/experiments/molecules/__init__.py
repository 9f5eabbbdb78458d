"""Table 2: every system of the paper, trained the same way on one data set of molecules, within one budget of time."""
