"""The outside world to :class:`~tokengt.Graph` and back."""
