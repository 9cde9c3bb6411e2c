"""Parameters over replicas: who has which part of them, and when they are whole."""
