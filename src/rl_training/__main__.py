"""Entry point of `rl-training` and `python -m rl_training`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C prints no traceback, not even during the imports."""
    try:
        from rl_training import cli

        cli.main(prog_name="rl-training")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
