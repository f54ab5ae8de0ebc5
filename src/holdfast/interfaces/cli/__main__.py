"""`python -m holdfast.interfaces.cli`."""

from holdfast.interfaces.cli.application import main

main()
