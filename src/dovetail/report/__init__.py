"""Answers for people and programs: JSON fields, pictures, traces, the HTML report, the accuracy page."""
