"""`python -m gpuprof`."""

from gpuprof.cli import main

if __name__ == "__main__":
    main()
