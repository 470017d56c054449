"""`python -m fedray` is the command `fedray`."""

from fedray.cli import main

if __name__ == "__main__":
    main()
