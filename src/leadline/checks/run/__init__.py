"""Run checks, one file each: pure functions of a run's History. Codes start with T."""
