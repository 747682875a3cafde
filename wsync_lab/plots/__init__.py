"""Tables as figures. Each chart's title states what was found; its axes name the units."""
