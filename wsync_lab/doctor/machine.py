"""All questions, asked of this machine."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from wsync_lab.config import TRANSPORT_NAMES
from wsync_lab.doctor.observe import Observation, observe

Machine = dict[str, Observation]
Asked = tuple[str, tuple[str, ...]]  # a key, and the question with its arguments
_SYSTEM = (
    "seccomp",
    "pidfd_getfd",
    "yama",
    "namespaces",
    "fd_passing",
    "shared_memory",
    "locked_memory",
    "mps",
    "versions",
    "gpus",
)
_AT_ONCE = 2  # probes of transports start two processes each


def examine(
    transports: Sequence[str] = TRANSPORT_NAMES, progress: Callable[[str], None] = lambda text: None
) -> Machine:
    """Answers by question; those about a transport under ``transport NAME``, about torch's IPC
    under ``torch_ipc plain`` and ``torch_ipc expandable``. Takes about 10 s on two cores."""
    machine = _ask([(name, (name,)) for name in _SYSTEM], progress)
    asked: list[Asked] = [(f"transport {name}", ("transport", name)) for name in transports]
    if has_gpu(machine):
        asked += [(name, (name,)) for name in ("expandable_segments", "nccl")]
        asked += [
            ("torch_ipc plain", ("torch_ipc", "False")),
            ("torch_ipc expandable", ("torch_ipc", "True")),
        ]
    return machine | _ask(asked, progress)


def has_gpu(machine: Machine) -> bool:
    """Whether torch sees a CUDA device."""
    gpus = machine["gpus"]
    return gpus.answered and bool(gpus.value["devices"])


def _ask(asked: Sequence[Asked], progress: Callable[[str], None]) -> Machine:
    def ask(key: str, question: tuple[str, ...]) -> Observation:
        progress(key)
        return observe(*question)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {key: pool.submit(ask, key, question) for key, question in asked}
    return {key: future.result() for key, future in running.items()}
