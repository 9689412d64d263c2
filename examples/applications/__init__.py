"""Five small, real problems: vision twice, language, speech, reinforcement learning. Each starts with a plausible
network that does not train; Leadline says why and repairs it, and the task's own score is shown.
"""

NAMES = ("residual_images", "image_tokens", "letters", "vowels", "cart_pole")
