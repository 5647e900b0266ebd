"""The backend of ``torch.compile(model, backend="optfuse")``, and what it did with each graph."""
