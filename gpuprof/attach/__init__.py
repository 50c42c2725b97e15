"""`gpuprof attach`: records a job that runs already and knows nothing of gpuprof.

targets     which processes a pid stands for, and that they stay the same ones
access      what the kernel and the target allow; how it is allowed more
elf, ptrace, trampoline, inject     one pending call on the target's main thread
agent       what runs inside the target: standard library only, undoes all it does
mailbox     the folder through which both sides talk
record      the whole of it: agents in, windows, agents out, one run directory
"""
