"""The tables of README.md and docs/, made from the files under results/ by `python -m docs.tables`."""
