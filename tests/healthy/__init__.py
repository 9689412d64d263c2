"""Networks in good order, on which no rule may speak up."""
