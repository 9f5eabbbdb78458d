"""The ADMET benchmark: 22 endpoints of TDC on their official splits, tokengt beside its rivals."""
