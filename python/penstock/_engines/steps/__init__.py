"""What the engines have in common: a step's sizes, and how far they have come."""
