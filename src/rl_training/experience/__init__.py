"""Experience: the policy that acts, environments that are stepped with it, and the rows that are stored."""
