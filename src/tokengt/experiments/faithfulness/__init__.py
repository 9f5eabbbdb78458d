"""Do attributions find the atoms that matter? Three tasks whose answer is known, a training each, AUC by method."""
