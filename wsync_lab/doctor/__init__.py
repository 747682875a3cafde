"""What works on this machine, found by doing it, what that means, and what to do."""
