"""Answers for people: plots, and the page that says how far predictions are from measured runs."""

from dovetail.report.accuracy_page import write_accuracy_page

__all__ = ["write_accuracy_page"]
