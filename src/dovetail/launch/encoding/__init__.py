"""The operator-centric encoding of a plan on a wafer: written from a plan, and read back as one."""
