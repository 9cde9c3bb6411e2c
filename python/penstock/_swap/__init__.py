"""What penstock.swap knows of scripts: the names that they use, and the trainers in them."""
