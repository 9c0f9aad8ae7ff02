"""What a plan is: its fields declared once, `Plan`, `Space`, plan files, words, and what a framework runs."""
