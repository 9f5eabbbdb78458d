"""The paper's tables: the only place that knows their numbers; results are written as data first."""
