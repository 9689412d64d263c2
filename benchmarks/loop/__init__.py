"""Loop bugs planted in small training programs, and healthy programs of many kinds."""
