"""What people are shown: figures now; HTML and PDF reports and energy cards build on them.

- `figures/`  one definition per figure, drawn interactively and as still images
"""
