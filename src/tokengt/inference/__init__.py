"""A run -> predictions that repeat, alone or in any batch."""

from tokengt.inference.answers import Answer as Answer
from tokengt.inference.answers import Predictions as Predictions
from tokengt.inference.predictor import Predictor as Predictor
from tokengt.inference.predictor import load as load
from tokengt.inference.trained import Trained as Trained
