"""Experience: the acting policy, the collector that steps environments with it, and observation statistics."""
