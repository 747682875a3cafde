"""The control plane of a colocated pair: one unix socket, typed messages, no pickle."""
