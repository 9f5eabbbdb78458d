"""Pictures of what attention does."""
