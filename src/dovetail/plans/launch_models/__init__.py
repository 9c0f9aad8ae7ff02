"""Models as launch formats have them: arguments that describe one, recipes and configurations that are one.

A launch file is written with these, and what cannot be described is what does not run (`plans.runs`).
"""
