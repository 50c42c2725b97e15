"""What a rank or a process does while others wait (`gpuprof.analyzers.standing`), with its place,
in Simplified Chinese. Without a place the others are in `sentences_zh_faults`."""

from __future__ import annotations

_ALONE: tuple[tuple[str, str], ...] = (
    ("waits for the others to start the process group", "在等其他 rank 启动进程组"),
    ("waits for the others to end the process group", "在等其他 rank 结束进程组"),
    ("waits inside backward, where gradients are reduced", "在反向传播中规约梯度的地方等待"),
    ("waits for its device", "在等自己的设备"),
    ("waits for its data loader", "在等自己的数据加载器"),
    ("writes or reads a checkpoint", "在写或读检查点"),
    ("waits for a lock or a thread of its own", "在等一把锁或自己的一个线程"),
    ("reads from a file or a pipe", "在读文件或管道"),
    ("writes to a file or a pipe", "在写文件或管道"),
    ("waits for a connection of its own", "在等自己的一个连接"),
    ("waits for a process that it started", "在等它启动的一个进程"),
    ("is stopped by a signal (SIGSTOP)", "被信号（SIGSTOP）停住"),
    ("is held in a debugger", "被调试器停住"),
    ("is inside a library, which does not return", "在某个库里没有返回"),
)
"""Said without a place as well."""

_DOES: tuple[tuple[str, str], ...] = (
    ("waits in {call}", "在 {call} 中等待"),
    ("wait in {call}", "在 {call} 中等待"),
    ("is in {call}", "在 {call} 中"),
    ("wait for the others to start the process group", "在等其他 rank 启动进程组"),
    ("wait for the others to end the process group", "在等其他 rank 结束进程组"),
    ("wait inside backward, where gradients are reduced", "在反向传播中规约梯度的地方等待"),
    ("sleeps", "在睡眠"),
    *_ALONE,
)

_WHO: tuple[tuple[str, str], ...] = (
    ("Rank {ranks}", "Rank {ranks} "),
    ("Ranks {ranks}", "Rank {ranks} "),
    ("Process {ranks}", "进程 {ranks} "),
    ("Processes {ranks}", "进程 {ranks} "),
)

_PLACES: tuple[tuple[str, str], ...] = (
    ("{place}", "{place}"),
    ("{place}; called from {outer}", "{place}；由 {outer} 调用"),
    (
        "{place}, unmoved for the {s} s that were watched",
        "{place}，在观察的 {s} s 内没有动",
    ),
)

SENTENCES: tuple[tuple[str, str], ...] = (
    *_ALONE,
    *((f"{does} at {{place}}", f"{said}，位于 {{place}}") for does, said in _DOES),
    *(
        (f"{who} {does} at {place}", f"{named}{said}，位于 {where}")
        for who, named in _WHO
        for does, said in _DOES
        for place, where in _PLACES
    ),
)
