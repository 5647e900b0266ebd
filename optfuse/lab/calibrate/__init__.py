"""A device file from measurements: ``optfuse calibrate``."""
