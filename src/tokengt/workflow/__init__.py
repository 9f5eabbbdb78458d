"""From files to trained models and back: each verb of the command line is one function here."""
