"""The HTML report: one file that needs no network, made of sections that `dovetail serve` shows too."""
