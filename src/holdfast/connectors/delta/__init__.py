"""Delta tables, written by `sink` and read by `source`; `log` and `commits` know the format both stand on."""
