"""Models measured in several compilers side by side: ``optfuse bench``."""
