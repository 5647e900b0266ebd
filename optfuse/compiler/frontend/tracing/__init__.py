"""A model outside of torch.compile, traced for inference or as a training step."""
