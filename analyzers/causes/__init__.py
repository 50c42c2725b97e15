"""The causes of low GPU utilization, one module each."""
