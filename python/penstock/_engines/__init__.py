"""What trains: engines, and all that they are made of.  Imports no module of a dialect's names."""
