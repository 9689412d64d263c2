"""Every number quoted anywhere comes from here: each script measures, stores its results, and fills its table."""
