"""Who pins the trainer's memory: the existing torch IPC path, its fixes and their faults, measured."""
