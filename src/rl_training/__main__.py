"""`python -m rl_training` is `rl-training`."""

from rl_training.cli import main

if __name__ == "__main__":
    main(prog_name="rl-training")
