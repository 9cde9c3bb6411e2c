"""What is run of a stage of a pipeline, whoever has made the stage."""
