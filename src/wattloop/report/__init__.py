"""What people are shown: figures, HTML and PDF reports, energy cards."""
