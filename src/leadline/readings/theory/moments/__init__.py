"""The moment rules, one file a family; found by looking (`leadline.collect`)."""
