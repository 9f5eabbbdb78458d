"""An explanation as one HTML file: no network, no server, nothing to install."""
