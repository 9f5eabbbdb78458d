"""From predictions and labels to a trained, described model: tasks, metrics, pictures, the model card, the loop."""
