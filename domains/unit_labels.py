"""Names of natural units in printed text; files keep the names that domains declare."""

LABELS = {("jsb", "step"): "sixteenth"}  # so that it is not read as an optimiser step


def unit_label(domain: str, unit: str) -> str:
    """The printed name of a domain's natural unit, in the singular."""
    return LABELS.get((domain, unit), unit)
