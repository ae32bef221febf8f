"""`python -m gossamer`, which is also how torchrun starts it."""

from gossamer.cli import main

main()
