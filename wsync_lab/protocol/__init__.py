"""The update protocol: the same for every transport and every engine."""
