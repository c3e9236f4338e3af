"""ViRL: crops of a picture as steps of the reasoning, and questions that need them."""
